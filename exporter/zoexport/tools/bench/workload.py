"""The examples of a shape: full rows of tokens that depend on the shape and the vocabulary alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from zoexport.core import rng
from zoexport.data.examples import Candidate, Example, write_examples
from zoexport.tools.bench.matrix import Shape

_TENSOR_ID = 0x7FFFFFFE
"""Words come from the noise specification, at a tensor id that no slot has."""


def examples(shape: Shape, vocabulary: int) -> list[Example]:
    """``batch_size`` examples of ``max_length`` tokens, spread over the whole vocabulary.

    With labels=all every token after the first is to be predicted, with labels=last the last alone.
    """
    first = shape.max_length - 1 if shape.labels == "last" else 1
    made = []
    for row in range(shape.batch_size):
        words = rng.words(0, _TENSOR_ID, row, 0, shape.max_length).astype(np.uint64)
        made.append(Example([Candidate.predicting((words % vocabulary).tolist(), first)], 0))
    return made


def examples_file(folder: Path, shape: Shape, vocabulary: int) -> Path:
    """These examples as a file of the runner's JSON Lines."""
    name = f"{vocabulary}-{shape.max_length}-{shape.batch_size}-{shape.labels}.jsonl"
    path = folder / name
    if not path.exists():
        write_examples(examples(shape, vocabulary), path)
    return path
