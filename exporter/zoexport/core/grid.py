"""Integers that are trained: roundings of a direction drawn from few levels, and the update (docs/noise.md).

Every function gives the same integers as ``runtime_ops/kernels/grid.h``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from zoexport.core import rng

_WHOLE = 1 << 32
_LEAST_LOG, _MOST_LOG = 3, 10
_MOST_CUT = 0.05
_MOST_STEPS = 255

Levels = NDArray[np.int8]
Table = NDArray[np.int32]


def pair_table(eps: float, bits: int) -> Table:
    """The alias table (Walker 1977) from which pairs of roundings of one normal number are drawn.

    Args:
        eps: e of Q(u) = clamp(floor(e u) + Ber(e u - floor(e u)), -L, L), L = 2^(bits - 1) - 1 (equation 5).
        bits: 2, 4 or 8.

    Returns:
        int32 (2^t, 2): thresholds, and pairs as four signed bytes each (docs/noise.md).

    Raises:
        ValueError: other bits, or an eps that is not above 0 or cuts off more than a twentieth of the directions.
    """
    if bits not in (2, 4, 8):
        raise ValueError(f"bits is {bits}; expected 2, 4 or 8")
    most = (1 << (bits - 1)) - 1
    if not eps > 0 or math.erfc(most / (eps * math.sqrt(2))) > _MOST_CUT:
        raise ValueError(f"eps is {eps}; expected above 0, and few directions beyond {most}")
    pairs, counts = _counts(eps, most)
    log = max(_LEAST_LOG, (len(pairs) - 1).bit_length())
    if log > _MOST_LOG:
        raise ValueError(f"{len(pairs)} pairs; expected at most {1 << _MOST_LOG}")
    return _alias(pairs, counts, log)


def pair_probabilities(eps: float, most: int) -> dict[tuple[int, int], float]:
    """P(Q1 = a, Q2 = b) over u, exact but for double precision: pairs differ by one at most.

    With x = e u and f its fraction between whole numbers, Q is the upper one with probability f.
    """
    found: dict[tuple[int, int], float] = {}

    def add(a: int, b: int, probability: float) -> None:
        found[a, b] = found.get((a, b), 0.0) + probability

    for low in range(-most, most):
        zero, one, two = _moments(low / eps, (low + 1) / eps)
        mean, square = eps * one - low * zero, _square(eps, low, zero, one, two)
        add(low, low, zero - 2 * mean + square)
        add(low, low + 1, mean - square)
        add(low + 1, low, mean - square)
        add(low + 1, low + 1, square)
    outside = 0.5 * math.erfc(most / (eps * math.sqrt(2)))
    add(most, most, outside)
    add(-most, -most, outside)
    return found


def _moments(begin: float, end: float) -> tuple[float, float, float]:
    """Return the integrals of 1, u and u^2 times the normal density from ``begin`` to ``end``."""
    zero = 0.5 * (math.erfc(begin / math.sqrt(2)) - math.erfc(end / math.sqrt(2)))
    if begin < 0 and end <= 0:  # differences of small tails, not of numbers near 2
        zero = 0.5 * (math.erfc(-end / math.sqrt(2)) - math.erfc(-begin / math.sqrt(2)))
    at_begin, at_end = _density(begin), _density(end)
    return zero, at_begin - at_end, zero + begin * at_begin - end * at_end


def _density(u: float) -> float:
    return math.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)


def _square(eps: float, low: int, zero: float, one: float, two: float) -> float:
    """Return the integral of f^2, f = e u - low."""
    return eps * eps * two - 2 * low * eps * one + low * low * zero


def _counts(eps: float, most: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Pairs that occur, and their counts of 2^-32; what rounding leaves over goes to the likeliest, (0, 0)."""
    counts = {
        pair: round(max(0.0, probability) * _WHOLE)
        for pair, probability in pair_probabilities(eps, most).items()
    }
    counts[0, 0] += _WHOLE - sum(counts.values())
    kept = sorted(pair for pair, count in counts.items() if count > 0)
    return kept, [counts[pair] for pair in kept]


def _alias(pairs: list[tuple[int, int]], counts: list[int], log: int) -> Table:
    """Build the alias table; every entry holds 2^32 / 2^log counts, of at most two pairs."""
    size = 1 << log
    left = [count * size for count in counts] + [0] * (size - len(counts))
    own = [*pairs, *[pairs[0]] * (size - len(pairs))]
    small = [entry for entry in range(size) if left[entry] < _WHOLE]
    large = [entry for entry in range(size) if left[entry] >= _WHOLE]
    table = np.zeros((size, 2), np.uint32)
    for entry in range(size):
        table[entry] = _entry(0, own[entry], own[entry])
    while small and large:
        little, much = small.pop(), large.pop()
        table[little] = _entry(left[little], own[little], own[much])
        left[much] -= _WHOLE - left[little]
        (small if left[much] < _WHOLE else large).append(much)
    return table.view(np.int32)


def _entry(threshold: int, own: tuple[int, int], alias: tuple[int, int]) -> tuple[int, int]:
    packed = sum((level & 0xFF) << (8 * place) for place, level in enumerate((*own, *alias)))
    return threshold, packed


def draw_pairs(
    table: Table, seed: int, tensor_id: int, query: int, step: int, count: int, start: int = 0
) -> tuple[Levels, Levels]:
    """Q1 and Q2 of the elements ``start`` .. ``start + count - 1``: int8 (count) each.

    Args:
        table: of :func:`pair_table`. seed, tensor_id, query, step: of the noise specification.
    """
    words = rng.words(seed, tensor_id, query, step, count, start=start)
    entries = table.view(np.uint32)
    log = len(table).bit_length() - 1
    place = words >> np.uint32(32 - log)
    alias = (words << np.uint32(log)) >= entries[place, 0]
    packed = np.where(alias, entries[place, 1] >> np.uint32(16), entries[place, 1])
    first = (packed & np.uint32(0xFF)).astype(np.uint8).view(np.int8)
    second = ((packed >> np.uint32(8)) & np.uint32(0xFF)).astype(np.uint8).view(np.int8)
    return first, second


def update_codes(
    codes: NDArray[np.int8],
    low: int,
    high: int,
    *,
    gradients: Sequence[float],
    learning_rate: float,
    eps: float,
    table: Table,
    seed: int,
    tensor_id: int,
    step: int,
    second: bool,
    summed: bool = False,
) -> NDArray[np.int8]:
    """clamp(w - sum over queries of S(c_i Q(u_i))), c_i = ((learning_rate / q) g_i) / e (equation 15).

    ``summed`` rounds the gradient of all queries once (equation 13): clamp(w - S(sum over queries of c_i Q(u_i))).

    Args:
        codes: integers (N, K) from ``low`` to ``high``.
        gradients: of the queries of step ``step``. learning_rate: of that step. eps, table: of the bundle.
        second: whether Q is the second rounding (Q-RGE2), or the first (Q-RGE1).
        summed: see above.
    """
    stream = seed, tensor_id | rng.ROUNDING

    def rounded(value: rng.Floats, query: int) -> NDArray[np.int32]:
        bits = rng.words(*stream, query, step, codes.size).reshape(codes.shape)
        steps = round_steps(np.abs(value), bits)
        return np.where(value < 0, -steps, steps)

    rate, most = np.float32(learning_rate) / np.float32(len(gradients)), np.float32(_MOST_STEPS)
    moved = codes.astype(np.int32)
    total = np.zeros(codes.shape, np.float32)
    for query, gradient in enumerate(gradients):
        coefficient = rate * np.float32(gradient) / np.float32(eps)
        if not abs(coefficient) > 0:  # nor for NaN
            continue
        pair = draw_pairs(table, seed, tensor_id, query, step, codes.size)
        direction = pair[second].astype(np.float32).reshape(codes.shape)
        move = direction * coefficient.clip(-most, most)
        if summed:
            total = total + move
        else:
            moved -= rounded(move, query)
    if summed:
        moved -= rounded(total, 0)
    return moved.clip(low, high).astype(np.int8)


def round_steps(size: rng.Floats, bits: NDArray[np.uint32]) -> NDArray[np.int32]:
    """S of sizes v >= 0: whole numbers whose mean is v, at most 255."""
    value = np.minimum(size, np.float32(_MOST_STEPS))
    whole = np.floor(value)
    threshold = ((value - whole) * np.float32(_WHOLE)).astype(np.uint64)
    up = bits.astype(np.uint64) < threshold
    return whole.astype(np.int32) + up
