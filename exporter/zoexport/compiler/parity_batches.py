"""Batches for parity: unequal lengths, padding, labels at the ends, all of the vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np

from zoexport.core import rng
from zoexport.data.examples import Candidate, Example

_BATCH_TENSOR_ID = 0x7FFFFFFF
"""Tensor id of the random words for batches (noise specification); no parameter has it."""


def make_batch(
    settings: dict[str, Any], vocabulary: int, step: int, least_labels: int = 0
) -> list[Example]:
    """Return the examples of one step, which depend only on the arguments.

    In even steps the first example fills the sequence and has labels at its first and last
    position. All others are shorter, with different lengths and some positions without a label, so
    that in odd steps no row fills the sequence and the session may use shorter rows. With
    loss=choices an example has two or three candidates, each with a few labels; with a loss of
    pairs it has two.

    Args:
        settings: ``max_length``, ``batch_size``, ``gradient_accumulation_steps`` and ``loss`` of the bundle.
        vocabulary: upper bound (exclusive) of tokens.
        step: number of the step.
        least_labels: minimum number of labels; examples are added until it is reached, even beyond
            one update.
    """
    examples: list[Example] = []
    labels = 0
    count = settings["batch_size"] * settings["gradient_accumulation_steps"]
    while len(examples) < count or labels < least_labels:
        examples.append(_example(settings, vocabulary, step, len(examples)))
        labels += sum(label >= 0 for label in examples[-1].candidates[0].labels)
    return examples


def _example(settings: dict[str, Any], vocabulary: int, step: int, number: int) -> Example:
    max_length = settings["max_length"]
    words = rng.words(step, _BATCH_TENSOR_ID, number, step, 8 * max_length + 8).astype(np.uint64)
    count = {"full": 1, "choices": 2 + int(words[0] % 2)}.get(settings["loss"], 2)
    full = number == 0 and step % 2 == 0
    candidates = []
    for candidate in range(count):
        part = words[8 + 2 * candidate * max_length :]
        length = max_length if full else 1 + int(words[1 + candidate] % max(max_length - 1, 1))
        tokens = [int(word % vocabulary) for word in part[:length]]
        labels = [int(word % vocabulary) for word in part[max_length : max_length + length]]
        labels[0], labels[-1] = 0, vocabulary - 1
        for position in range(length):
            ends = position == length - 1 or (full and position == 0)
            # A choice is a few tokens after a prompt: many labels would make one choice certain, its loss
            # zero, and relative errors meaningless.
            kept = position >= length - 1 - candidate if count > 1 else part[position] % 3 > 0
            if not (ends or kept):
                labels[position] = -100
        candidates.append(Candidate(tokens, labels))
    return Example(candidates, int(words[7] % count))
