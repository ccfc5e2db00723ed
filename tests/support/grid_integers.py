"""docs/noise.md once more, in numpy: the table of roundings, integers and their update, one number at a time."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoexport.core import rng

HIDDEN, SEED = 8, 7
BITS, EPS = 3, 0.75
TABLE, TABLE_SIZE = "quzo.table", 32
#: The slots that are trained, all of HIDDEN x HIDDEN integers: name -> tensor id, dtype.
TRAINED = {"codes.0": (4, "uint8"), "codes.1": (9, "uint8"), "codes.2": (11, "int8")}
Arrays = dict[str, NDArray[Any]]


# ---- the table -------------------------------------------------------------------------------------------------------


@functools.cache
def probabilities() -> dict[tuple[int, int], float]:
    """The probability of each pair (Q1, Q2): two roundings of eps u, u standard normal, cut at 2^(bits-1) - 1."""
    u = np.linspace(-9, 9, 20001)
    density = np.exp(-u * u / 2) / math.sqrt(2 * math.pi) * (u[1] - u[0])
    low = np.floor(EPS * u)
    up = EPS * u - low
    most = 2 ** (BITS - 1) - 1
    found: dict[tuple[int, int], float] = {}
    for first in (0, 1):
        for second in (0, 1):
            share = (up if first else 1 - up) * (up if second else 1 - up) * density
            pairs = np.clip(np.stack([low + first, low + second]), -most, most).astype(int)
            for pair in {(int(a), int(b)) for a, b in pairs.T}:
                here = (pair == pairs.T).all(1)
                found[pair] = found.get(pair, 0.0) + float(share[here].sum())
    return found


@functools.cache
def table() -> NDArray[np.int32]:
    """Walker's alias table of 32 entries."""
    size = TABLE_SIZE
    pairs = sorted(probabilities())
    counts = [round(probabilities()[pair] * 2**32) for pair in pairs]
    counts[counts.index(max(counts))] += 2**32 - sum(counts)
    pairs += [(0, 0)] * (size - len(pairs))
    left = dict(enumerate([*counts, *[0] * (size - len(counts))]))
    room = 2**32 // size
    found = np.zeros((size, 2), np.int64)
    while left:
        least, most = min(left, key=lambda i: left[i]), max(left, key=lambda i: left[i])
        own = min(left.pop(least), room)
        if own < room:
            left[most] -= room - own
        # The word's other 27 bits are compared with the share of the entry that is its own.
        found[least, 0] = min(own * size, 2**32 - 1)
        four = [*pairs[least], *pairs[most]]
        found[least, 1] = sum((value & 255) << 8 * place for place, value in enumerate(four))
    return found.astype(np.uint32).view(np.int32)


def roundings(
    tensor_id: int, query: int, step: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Q1 and Q2 of every element."""
    size = len(table())
    bits = size.bit_length() - 1
    words = rng.words(SEED, tensor_id, query, step, count).astype(np.uint64)
    entry = (words >> np.uint64(32 - bits)).astype(np.int64)
    rest = (words << np.uint64(bits)) & np.uint64(0xFFFFFFFF)
    own = rest < table()[entry, 0].view(np.uint32)
    four = (
        np.ascontiguousarray(table()[:, 1]).view(np.int8).reshape(size, 4)[entry].astype(np.int64)
    )
    return np.where(own, four[:, 0], four[:, 2]), np.where(own, four[:, 1], four[:, 3])


# ---- the integers ----------------------------------------------------------------------------------------------------


def integers(name: str, values: NDArray[Any]) -> NDArray[np.int64]:
    """Those of a slot, (N, K)."""
    if TRAINED[name][1] == "int8":
        return values.astype(np.int64)
    return np.stack([values & 15, values >> 4], -1).reshape(HIDDEN, HIDDEN).astype(np.int64) - 8


def packed(name: str, values: NDArray[np.int64]) -> NDArray[Any]:
    """What a slot has for integers (N, K)."""
    if TRAINED[name][1] == "int8":
        return values.astype(np.int8)
    codes = (values + 8).astype(np.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4


def clamped(name: str, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The nearest integers of the grid."""
    low, high = (-127, 127) if TRAINED[name][1] == "int8" else (-8, 7)
    return np.clip(values, low, high)


def initial_integers() -> Arrays:
    """The integers of the trained slots, in their dtypes; some integers lie at the ends of the grid."""
    generator = np.random.default_rng(14)
    found: Arrays = {}
    for name in TRAINED:
        spread = 60 if TRAINED[name][1] == "int8" else 4
        values = np.rint(spread * generator.normal(size=(HIDDEN, HIDDEN))).astype(np.int64)
        found[name] = packed(name, clamped(name, values))
    return found


def updated(
    state: Mapping[str, NDArray[Any]],
    gradients: tuple[float, ...],
    learning_rate: float,
    step: int,
    *,
    second: bool = True,
    summed: bool = False,
) -> Arrays:
    """The state after the update of ``step``; ``second``: along Q2; ``summed``: rounded once."""
    found = dict(state)
    rate = np.float32(learning_rate) / np.float32(len(gradients))
    for name in TRAINED:
        tensor_id = TRAINED[name][0]
        count = HIDDEN * HIDDEN
        total = np.zeros(count, np.int64)
        sums = np.zeros(count, np.float32)
        for query, gradient in enumerate(gradients):
            c = (rate * np.float32(gradient)) / np.float32(EPS)
            q = roundings(tensor_id, query, step, count)[int(second)]
            sums = sums + c * q.astype(np.float32)
            r = rng.words(SEED, tensor_id + 0x80000000, query, step, count)
            for i in range(count):
                total[i] += _rounded(c * np.float32(q[i]), int(r[i]))
        if summed:
            r = rng.words(SEED, tensor_id + 0x80000000, 0, step, count)
            total = np.array([_rounded(sums[i], int(r[i])) for i in range(count)])
        moved_to = integers(name, state[name]) - total.reshape(HIDDEN, HIDDEN)
        found[name] = packed(name, clamped(name, moved_to))
    return found


def _rounded(move: np.float32, r: int) -> int:
    """S of a move, by 32 random bits."""
    v = np.abs(move)
    whole = min(int(v), 255)
    threshold = int((v - np.float32(int(v))) * np.float32(2**32)) if v < 255 else 0
    return int(np.sign(move)) * (whole + (r < threshold))
