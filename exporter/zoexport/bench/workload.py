"""The examples of a shape: full rows of tokens that depend on the shape and the vocabulary alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from zoexport.bench.grid import Shape
from zoexport.core import rng
from zoexport.data import Candidate, Example
from zoexport.data.examples import IGNORED, write_examples

_TENSOR_ID = 0x7FFFFFFE
"""Words come from the noise specification, at a tensor id that no slot has."""


def examples(shape: Shape, vocabulary: int) -> list[Example]:
    """``batch`` examples of ``seq_len`` tokens, spread over the whole vocabulary.

    With labels=all every position has a label, with labels=last the last alone.
    """
    made = []
    for row in range(shape.batch):
        words = rng.words(0, _TENSOR_ID, row, 0, 2 * shape.seq_len).astype(np.uint64)
        tokens, labels = (words % vocabulary).reshape(2, shape.seq_len).tolist()
        if shape.labels == "last":
            labels[:-1] = [IGNORED] * (shape.seq_len - 1)
        made.append(Example([Candidate(tokens, labels)], 0))
    return made


def examples_file(folder: Path, shape: Shape, vocabulary: int) -> Path:
    """These examples as a file of the runner's JSON Lines."""
    name = f"{vocabulary}-{shape.seq_len}-{shape.batch}-{shape.labels}.jsonl"
    path = folder / name
    if not path.exists():
        write_examples(examples(shape, vocabulary), path)
    return path
