"""Memory planning: offsets of tensors in one block, by their lifetimes."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

ALIGNMENT = 16


@dataclasses.dataclass(frozen=True)
class Lifetime:
    """A tensor's bytes, and the positions in the program of its first and last use."""

    size: int
    begin: int
    end: int


def placed(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Return the offset of each tensor, and the bytes of all.

    The largest first, each in the lowest gap between those that are needed at the same time (greedy by size: Pisarchyk
    and Lee, 2020, section 5).
    """
    offsets = [0] * len(lifetimes)
    taken: list[tuple[int, int, int]] = []  # offset, end, and number of those that have a place
    order = sorted(range(len(lifetimes)), key=lambda number: (-lifetimes[number].size, number))
    total = 0
    for number in order:
        mine = lifetimes[number]
        size = -(-mine.size // ALIGNMENT) * ALIGNMENT
        offset = 0
        for begin, end, other in taken:
            theirs = lifetimes[other]
            if mine.begin > theirs.end or mine.end < theirs.begin:
                continue
            if begin - offset >= size:
                break
            offset = max(offset, end)
        offsets[number] = offset
        total = max(total, offset + size)
        bisect.insort(taken, (offset, offset + size, number))
    return offsets, total
