"""Tokenized examples: sequences with labels, as the session reads them from a data file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from zoexport.core.errors import DataError
from zoexport.core.files import atomic_file
from zoexport.session.data import Tokenizer

IGNORED = -100
"""The label of a position at which nothing is predicted."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One sequence; ``labels[t]`` is the token to be predicted at ``tokens[t]``, or -100. Both have the same length.

    For a causal model it is the next token, for a masked one the token under the mask.
    """

    tokens: list[int]
    labels: list[int]

    @classmethod
    def predicting(cls, tokens: list[int], first: int) -> Candidate:
        """Label each of ``tokens[first:]`` at the position before it; the first has no label."""
        start = max(first, 1)
        labels = [IGNORED] * (start - 1) + tokens[start:] + [IGNORED]
        return cls(tokens, labels[: len(tokens)])


@dataclasses.dataclass(frozen=True)
class Example:
    """Completions to compare, or a single one, and the index of the right one."""

    candidates: list[Candidate]
    target: int

    def as_dict(self) -> dict[str, Any]:
        """Return the example as a line of the runner's JSON Lines."""
        candidates = [{"tokens": c.tokens, "labels": c.labels} for c in self.candidates]
        return {"candidates": candidates, "target": self.target}


class _EnoughError(Exception):
    """Ends the reading of a file."""


def read_examples(
    tokenizer: Tokenizer,
    path: Path,
    *,
    most: int | None = None,
    wanted: Callable[[int], bool] = lambda number: True,
) -> list[Example]:
    """Read the examples of a data file.

    Args:
        tokenizer: tokenizer of the model.
        path: JSON Lines of the shapes that training accepts.
        most: maximum number of examples; None: all, and every line is checked.
        wanted: returns whether to keep the example with this index, from 0.

    Raises:
        DataError: a line cannot be used, or there are no examples.
    """
    found: list[Example] = []
    number = -1

    def take(line: dict[str, Any]) -> None:
        nonlocal number
        if "problem" in line:
            raise DataError(**line["problem"])
        number += 1
        if wanted(number):
            candidates = [Candidate(**candidate) for candidate in line["candidates"]]
            found.append(Example(candidates, line["target"]))
        if number + 1 == most:
            raise _EnoughError

    with contextlib.suppress(_EnoughError):
        tokenizer.examples(path, take)
    return found


def write_examples(examples: Iterable[Example], path: Path) -> None:
    """Write the runner's JSON Lines atomically (docs/formats.md).

    Raises:
        ConfigError: the place cannot be written.
    """
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for example in examples:
            file.write(json.dumps(example.as_dict(), separators=(",", ":")) + "\n")
