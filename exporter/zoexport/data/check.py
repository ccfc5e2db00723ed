"""``data check``: what a session would find in a source, every problem and not only the first."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zoexport.core.errors import DataError
from zoexport.data.records import read_lines
from zoexport.data.sources import DataSource, line_of, records
from zoexport.session import read_manifest
from zoexport.session.data import Dataset, Tokenizer

_LABELS = 20
"""Completions that are counted by name, at most; data with more of them has no classes."""


@dataclasses.dataclass
class _Found:
    """What is counted on the way."""

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

    def problem(self, error: DataError) -> None:
        self.problem_count += 1
        if len(self.problems) < self.limit:
            self.problems.append(error.as_dict())


def check(
    bundle: Path,
    source: DataSource,
    *,
    loss: str = "full",
    pack: bool = False,
    limit: int = 20,
) -> dict[str, Any]:
    """Read a source as training would, and count what is in it.

    Args:
        bundle: whose tokenizer and ``seq_len`` are meant.
        source: what is read.
        loss: of the run; every example must have what it compares.
        pack: whether to say how many rows ``pack=on`` makes of them.
        limit: places of problems and of shortened examples that are listed, at most.

    Returns:
        The keys of ``data check --json`` (docs/cli.md).

    Raises:
        DataError: the source cannot be read at all. ConfigError, BundleError: it cannot be tokenized.
    """
    manifest = read_manifest(bundle)
    found = _Found(limit)
    with (
        Tokenizer.open(bundle) as tokenizer,
        tempfile.TemporaryDirectory(prefix="zoexport-") as folder,
    ):
        reader = _Reader(Path(folder), tokenizer, loss, "on" if pack else "off")
        for where, line in _lines(source, found):
            reader.read(where, line, found)
        rows = reader.rows() if pack and found.lengths else None
    lengths = sorted(found.lengths)
    usable = len(lengths)
    return {
        "examples": usable,
        "usable": usable > 0 and found.problem_count == 0,
        "shapes": dict(found.shapes),
        "seq_len": manifest["settings"]["seq_len"],
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
        "problem_count": found.problem_count,
        "problems": found.problems,
    }


def _lines(source: DataSource, found: _Found) -> Iterator[tuple[str, bytes]]:
    """The lines that the session would read, with their places; rows that become none are problems."""
    if source.as_it_is:
        yield from read_lines(Path(source.name), lambda raw, where: (where, raw.rstrip(b"\r\n")))
        return
    for where, record in records(source, found.problem):
        try:
            line = line_of(record, where)
        except DataError as error:
            found.problem(error)
        else:
            yield where, line.rstrip("\n").encode("utf-8", "surrogatepass")


class _Reader:
    """The session's reading of lines, with their places in the source."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, loss: str, pack: str) -> None:
        self._line = folder / "line.jsonl"
        self._usable = folder / "usable.jsonl"
        self._tokenizer = tokenizer
        self._how: dict[str, Any] = {"loss": loss, "pack": pack}

    def read(self, where: str, line: bytes, found: _Found) -> None:
        """Count the example of a line, or its problem."""
        path = self._line
        path.write_bytes(line + b"\n")
        with Dataset() as dataset:
            try:
                read = dataset.read(path, self._tokenizer, **self._how)
            except DataError as error:
                at = error.where.replace(f"{path}:1", where).replace(str(path), where)
                found.problem(
                    DataError(at, found=error.found, expected=error.expected, fix=error.fix)
                )
                _count_empty(line, found)
                return
        found.lengths.append(read.longest)
        if read.shortened:
            found.shortened += 1
            if len(found.shortened_at) < found.limit:
                found.shortened_at.append(where)
        _count(json.loads(line), found)
        if self._how["pack"] == "on":  # rows are known of all lines together
            with self._usable.open("ab") as file:
                file.write(path.read_bytes())

    def rows(self) -> int:
        """Of all that can be used."""
        with Dataset() as dataset:
            dataset.read(self._usable, self._tokenizer, **self._how)
            return len(dataset)


def _count_empty(line: bytes, found: _Found) -> None:
    try:
        content = json.loads(line)
    except ValueError:
        return
    if isinstance(content, dict):
        found.empty += any(
            content.get(key) == "" for key in ("text", "completion", "chosen", "rejected")
        )


def _count(content: Mapping[str, Any], found: _Found) -> None:
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()[:16]
    found.duplicates += digest in found.seen
    found.seen.add(digest)
    if "chosen" in content:
        found.shapes["preference"] += 1
        texts = (content.get(key) for key in ("prompt", "chosen", "rejected"))
        found.empty += any(isinstance(text, str) and not text.strip() for text in texts)
    elif "messages" in content:
        found.shapes["messages"] += 1
    elif "text" in content:
        found.shapes["text"] += 1
        found.empty += not content["text"].strip()
    else:
        _count_completion(content, found)


def _count_completion(content: Mapping[str, Any], found: _Found) -> None:
    completion = content["completion"]
    choices = content.get("choices")
    found.shapes["completion" if choices is None else "choices"] += 1
    found.empty += not content["prompt"].strip() or not completion.strip()
    if choices is not None:
        found.choices[len(choices)] += 1
        found.right[choices.index(completion)] += 1
    if not found.many_labels:
        found.labels[completion] += 1
        if len(found.labels) > _LABELS:
            found.many_labels = True
            found.labels.clear()
