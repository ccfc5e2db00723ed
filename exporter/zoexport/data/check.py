"""``data check``: report all problems that a session would find in a source."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.core.errors import DataError
from zoexport.data.sources import DataSource, converted
from zoexport.session import Bundle
from zoexport.session.data import Dataset, Tokenizer, reading

_LABELS = 20
"""Completions that are counted by name, at most; data with more of them has no classes."""


@dataclasses.dataclass
class _Found:
    """Counters of a check."""

    limit: int
    shapes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    labels: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    choices: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    right: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    lengths: list[int] = dataclasses.field(default_factory=list)
    seen: set[bytes] = dataclasses.field(default_factory=set)
    duplicates: int = 0
    empty: int = 0
    shortened: int = 0
    shortened_at: list[str] = dataclasses.field(default_factory=list)
    problem_count: int = 0
    problems: list[dict[str, str]] = dataclasses.field(default_factory=list)
    many_labels: bool = False
    unused: set[str] = dataclasses.field(default_factory=set)
    last_turn_only: int = 0
    joined: int = 0
    merged: int = 0

    def problem(self, error: DataError) -> None:
        """Count a row that cannot be used."""
        self.problem_count += 1
        if len(self.problems) < self.limit:
            self.problems.append(error.as_dict())

    def unusable(self, error: DataError) -> None:
        """Count a line that the session refuses."""
        self.problem(error)
        self.empty += error.found.startswith(("an empty ", "0 tokens"))

    def example(self, line: Mapping[str, Any], where: str) -> None:
        """Count an example (``zo_examples_read`` has the keys)."""
        record = line["record"]
        digest = hashlib.sha256(
            json.dumps([record, line["target"]], sort_keys=True).encode()
        ).digest()[:16]
        self.duplicates += digest in self.seen
        self.seen.add(digest)
        self.lengths.append(line["length"])
        self.unused.update(line["unused"])
        self.last_turn_only += line["last_turn_only"]
        self.merged += line["merged"]
        if line["shortened"]:
            self.shortened += 1
            if len(self.shortened_at) < self.limit:
                self.shortened_at.append(where)
        if "messages" in record:
            self.shapes["preference" if "rejected" in record else "messages"] += 1
        elif "text" in record:
            self.shapes["text"] += 1
            self.empty += _blank(record["text"])
        elif record["pair"]:
            self.shapes["preference"] += 1
            self.empty += any(map(_blank, (record["prompt"], *record["completions"])))
        else:
            self._completion(record["prompt"], record["completions"], line["target"])

    def _completion(self, prompt: str, completions: Sequence[str], right: int) -> None:
        compared = len(completions) > 1
        whole = prompt and not prompt[-1].isspace() and not completions[right][:1].isspace()
        self.joined += bool(whole)
        self.shapes["choices" if compared else "completion"] += 1
        self.empty += _blank(prompt) or _blank(completions[right])
        if compared:
            self.choices[len(completions)] += 1
            self.right[right] += 1
        if not self.many_labels:
            self.labels[completions[right]] += 1
            if len(self.labels) > _LABELS:
                self.many_labels = True
                self.labels.clear()


def check(
    bundle: Bundle,
    source: DataSource,
    *,
    loss: str = "full",
    pack: bool = False,
    limit: int = 20,
) -> dict[str, Any]:
    """Read a source as training would, and return statistics and problems.

    Args:
        bundle: bundle with the tokenizer and ``max_length``.
        source: data to read.
        loss: loss of the run; every example must have what it compares.
        pack: whether to count the rows of ``pack=true``.
        limit: maximum number of problems and of truncated examples to list.

    Returns:
        The keys of ``data check --json`` (docs/reference/cli.md).

    Raises:
        DataError: the source cannot be read at all. ConfigError, BundleError: it cannot be tokenized.
    """
    found = _Found(limit)
    how = {**reading(bundle.settings), "loss": loss, "pack": pack}
    rows = None
    faulty: set[int] = set()
    with (
        Tokenizer.open(bundle.path, trust=bundle.trust) as tokenizer,
        converted(source, found.problem) as data,
    ):

        def take(line: dict[str, Any]) -> None:
            if "problem" in line:
                faulty.add(line["line"])
                found.unusable(DataError(**line["problem"]))
            else:
                found.example(line, f"{data.path}:{line['line']}")

        if data.places is None or data.path.stat().st_size > 0:
            tokenizer.examples(data.path, take, **how)
        if pack and found.lengths:
            rows = _rows(data.path, faulty, tokenizer, how)
        for problem in found.problems:
            problem["where"] = data.original(problem["where"])
        found.shortened_at = [data.original(where) for where in found.shortened_at]
    lengths = sorted(found.lengths)
    usable = len(lengths)
    return {
        "examples": usable,
        "usable": usable > 0 and found.problem_count == 0,
        "shapes": dict(found.shapes),
        "max_length": bundle.settings["max_length"],
        "tokens": None
        if not lengths
        else {
            "least": lengths[0],
            "median": lengths[(usable - 1) // 2],
            "p95": lengths[-(-95 * usable // 100) - 1],
            "longest": lengths[-1],
        },
        "labels": None if found.many_labels else dict(found.labels.most_common()),
        "choices": {str(key): found.choices[key] for key in sorted(found.choices)},
        "right": {str(key): found.right[key] for key in sorted(found.right)},
        "duplicates": found.duplicates,
        "empty": found.empty,
        "rows": rows,
        "shortened": found.shortened,
        "shortened_at": found.shortened_at,
        "joined": found.joined,
        "merged": found.merged,
        "last_turn_only": found.last_turn_only,
        "unused": sorted(found.unused),
        "problem_count": found.problem_count,
        "problems": found.problems,
    }


def _rows(path: Path, faulty: set[int], tokenizer: Tokenizer, how: dict[str, Any]) -> int:
    """Return the number of rows of all usable lines."""
    with Dataset() as dataset, tempfile.NamedTemporaryFile(suffix=".jsonl") as usable:
        if faulty:
            with path.open("rb") as lines:
                usable.writelines(
                    line for number, line in enumerate(lines, start=1) if number not in faulty
                )
            usable.flush()
        dataset.read(Path(usable.name) if faulty else path, tokenizer, **how)
        return len(dataset)


def _blank(text: str) -> bool:
    return not text.strip()
