"""The noise specification ``zoexport-philox4x32-10/1`` in numpy (docs/noise.md states it).

Every function gives the same bits as ``runtime_ops/rng``. Integers are uint32 with wrap-around; the
normals use float32 additions, subtractions, multiplications and square roots only, one rounding each,
in the order written here: reordering any line below changes the specification.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SPEC_ID = "zoexport-philox4x32-10/1"

#: Stochastic rounding of tensor t draws from tensor id ``t | ROUNDING``, so that it is independent of t's noise.
ROUNDING = 0x80000000
#: Dropout masks draw from tensor id ``b | DROPOUT``; b is the id of the adapter's second matrix.
DROPOUT = 0x60000000
#: The tensor id of the shuffle; slots use ids below ``SHUFFLE - ROUNDING``.
SHUFFLE = 0xFFFFFFFF

#: Philox4x32-10: its rounds, what counter words 0 and 2 are multiplied by, and what is added to the key after a round.
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)

_U32 = 0xFFFFFFFF
_CHUNK = 1 << 16  # blocks at a time: temporaries stay below 20 MB

Words = NDArray[np.uint32]
Floats = NDArray[np.float32]


def _f32(literal: str) -> np.float32:
    return np.float32(float.fromhex(literal))


# ln(m) for m in [sqrt(1/2), sqrt(2)), x = m - 1: x - x^2/2 + x^3 P(x); highest power first.
_LN = [
    _f32(c)
    for c in (
        "0x1.204376p-4",
        "-0x1.d7a370p-4",
        "0x1.de4a34p-4",
        "-0x1.fcba9ep-4",
        "0x1.23d37ep-3",
        "-0x1.555ca0p-3",
        "0x1.999d58p-3",
        "-0x1.fffff8p-3",
        "0x1.555554p-2",
    )
]
_LN2_LOW = _f32("-0x1.bd0106p-13")  # ln 2 = _LN2_HIGH + _LN2_LOW; _LN2_HIGH * e is exact
_LN2_HIGH = _f32("0x1.630000p-1")
# sin t = t + t^3 S(t^2) and cos t = 1 - t^2/2 + t^4 C(t^2) for |t| <= pi/4.
_SIN = [_f32(c) for c in ("-0x1.9943f2p-13", "0x1.11073cp-7", "-0x1.555546p-3")]
_COS = [_f32(c) for c in ("0x1.99eb9cp-16", "-0x1.6c0c34p-10", "0x1.55554ap-5")]
_ANGLE = _f32("0x1.921fb6p-22")  # (pi/2) * 2^-22: radians in one of 2^24 steps of a turn


def _check(name: str, value: int, bound: int) -> int:
    number = int(value)
    if not 0 <= number < bound:
        raise ValueError(f"{name} is {number}; expected 0 <= {name} < 2**{bound.bit_length() - 1}")
    return number


def _check_key(seed: int, tensor_id: int, query: int, step: int) -> tuple[int, int, int, int]:
    return (
        _check("seed", seed, 1 << 64),
        _check("tensor_id", tensor_id, 1 << 32),
        _check("query", query, 1 << 32),
        _check("step", step, 1 << 32),
    )


def philox_rounds(counter: Words, key: tuple[int, int]) -> Words:
    """Philox4x32-10 (Salmon et al., SC 2011) of counters.

    Args:
        counter: uint32 (n, 4).
        key: two 32-bit numbers.

    Returns:
        uint32 (n, 4).
    """
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint64) for i in range(4))
    mask, shift = np.uint64(_U32), np.uint64(32)
    k0, k1 = key
    for _ in range(ROUNDS):
        product0 = c0 * np.uint64(MULTIPLIERS[0])
        product1 = c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            (product1 >> shift) ^ c1 ^ np.uint64(k0),
            product1 & mask,
            (product0 >> shift) ^ c3 ^ np.uint64(k1),
            product0 & mask,
        )
        k0 = (k0 + KEY_STEPS[0]) & _U32
        k1 = (k1 + KEY_STEPS[1]) & _U32
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def philox(
    seed: int, tensor_id: int, query: int, step: int, first_block: int, blocks: int
) -> Words:
    """Return the words of consecutive element blocks.

    Args:
        seed: u64, the key: its low half, then its high half.
        tensor_id: u32, counter word 1.
        query: u32, counter word 2.
        step: u32, counter word 3.
        first_block: u32, counter word 0 of the first row; block b serves the elements 4b .. 4b+3.
        blocks: how many.

    Returns:
        uint32 (blocks, 4).

    Raises:
        ValueError: a number is negative or too large, or the blocks run beyond 2**32.
    """
    seed, tensor_id, query, step = _check_key(seed, tensor_id, query, step)
    first_block = _check("first_block", first_block, 1 << 32)
    blocks = int(blocks)
    if not 0 <= blocks <= (1 << 32) - first_block:
        raise ValueError(
            f"blocks is {blocks}; expected 0 <= blocks <= 2**32 - first_block ({first_block})"
        )
    counter = np.empty((blocks, 4), dtype=np.uint32)
    counter[:, 0] = np.arange(first_block, first_block + blocks, dtype=np.uint64)
    counter[:, 1] = tensor_id
    counter[:, 2] = query
    counter[:, 3] = step
    return philox_rounds(counter, (seed & _U32, seed >> 32))


def words(
    seed: int, tensor_id: int, query: int, step: int, count: int, start: int = 0
) -> NDArray[np.uint32]:
    """The raw word of each of the elements ``start .. start + count - 1`` (stochastic-rounding bits).

    Returns:
        uint32 (count,).

    Raises:
        ValueError: a number is out of range.
    """
    count = _check("count", count, (1 << 34) + 1)
    start = _check("start", start, 1 << 34)
    first = start // 4
    blocks = (start + count + 3) // 4 - first
    block = philox(seed, tensor_id, query, step, first, blocks).reshape(-1)
    return block[start - 4 * first :][:count]


def signs(
    seed: int, tensor_id: int, query: int, step: int, count: int, start: int = 0
) -> NDArray[np.float32]:
    """Return Rademacher signs: -1 if the top bit of an element's word is set, else +1.

    Returns:
        float32 (count,).

    Raises:
        ValueError: a number is out of range.
    """
    word = words(seed, tensor_id, query, step, count, start)
    return (np.uint32(0x3F800000) | (word & np.uint32(0x80000000))).view(np.float32)


def kept(
    seed: int, tensor_id: int, query: int, step: int, count: int, share: float, start: int = 0
) -> Floats:
    """Return dropout factors (docs/noise.md, "Dropout"): 0 for a ``share``, else 1 / (1 - share).

    Returns:
        float32 (count,).

    Raises:
        ValueError: a number is out of range.
    """
    if not 0 <= share < 1:
        raise ValueError(f"share is {share}; expected 0 <= share < 1")
    word = words(seed, tensor_id, query, step, count, start)
    return (word >= np.uint32(int(share * 2**32))) * np.float32(1 / (1 - share))


def normals(
    seed: int, tensor_id: int, query: int, step: int, count: int, start: int = 0
) -> NDArray[np.float32]:
    """Standard normals of the elements ``start .. start + count - 1``.

    Returns:
        float32 (count,); |z| < 5.77.

    Raises:
        ValueError: a number is out of range.
    """
    _check_key(seed, tensor_id, query, step)
    count = _check("count", count, (1 << 34) + 1)
    start = _check("start", start, 1 << 34)
    first = start // 4
    last = (start + count + 3) // 4
    if last > 1 << 32:
        raise ValueError(f"element {start + count - 1} is beyond the last one, 2**34 - 1")
    out = np.empty((last - first, 4), dtype=np.float32)
    for begin in range(first, last, _CHUNK):
        end = min(begin + _CHUNK, last)
        word = philox(seed, tensor_id, query, step, begin, end - begin)
        out[begin - first : end - first] = normals_from_words(word)
    return out.reshape(-1)[start - 4 * first :][:count]


def normals_from_words(word: Words) -> Floats:
    """Box-Muller of Philox blocks: words 0, 1 give elements 0, 1 and words 2, 3 give elements 2, 3.

    Args:
        word: uint32 (n, 4).

    Returns:
        float32 (n, 4).
    """
    pairs = word.reshape(-1, 2)
    radius = _radius(pairs[:, 0])
    sine, cosine = _sine_cosine(pairs[:, 1])
    return np.stack([radius * cosine, radius * sine], axis=1).reshape(-1, 4)


def _radius(word: Words) -> Floats:
    """sqrt(-2 ln u), u = (word >> 9 + 1/2) * 2^-23, exact and strictly between 0 and 1."""
    u = ((word >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * _f32("0x1p-23")
    bits = u.view(np.uint32)
    # Exponent such that the mantissa lies in [sqrt(1/2), sqrt(2)); 127 << 23 keeps the shift unsigned.
    biased = (bits - np.uint32(0x3F3504F3) + np.uint32(0x3F800000)) >> np.uint32(23)
    exponent = (biased.astype(np.int32) - np.int32(127)).astype(np.float32)
    mantissa = (bits - (biased << np.uint32(23)) + np.uint32(0x3F800000)).view(np.float32)
    x = mantissa - np.float32(1)
    square = x * x
    p = np.full_like(x, _LN[0])
    for c in _LN[1:]:
        p = p * x + c
    y = (p * x) * square
    y = y + exponent * _LN2_LOW
    y = y - np.float32(0.5) * square
    ln = (x + y) + exponent * _LN2_HIGH
    return np.sqrt(ln * np.float32(-2))


def _sine_cosine(word: Words) -> tuple[Floats, Floats]:
    """Sine and cosine of the angle 2 pi (word >> 8) / 2^24."""
    angle = word >> np.uint32(8)
    quadrant = (angle + np.uint32(1 << 21)) >> np.uint32(22)
    remainder = (angle - (quadrant << np.uint32(22))).view(np.int32)
    t = remainder.astype(np.float32) * _ANGLE
    square = t * t
    s = (_SIN[0] * square + _SIN[1]) * square + _SIN[2]
    s = (s * square) * t + t
    c = (_COS[0] * square + _COS[1]) * square + _COS[2]
    c = ((c * square) * square - np.float32(0.5) * square) + np.float32(1)
    s_bits, c_bits = s.view(np.uint32), c.view(np.uint32)
    swap = (quadrant & np.uint32(1)) != 0
    sine = np.where(swap, c_bits, s_bits) ^ ((quadrant & np.uint32(2)) << np.uint32(30))
    cosine = np.where(swap, s_bits, c_bits) ^ (
        ((quadrant + np.uint32(1)) & np.uint32(2)) << np.uint32(30)
    )
    return sine.view(np.float32), cosine.view(np.float32)


def permutation(seed: int, epoch: int, n: int) -> NDArray[np.int64]:
    """The order of ``n`` entries in an epoch: Fisher-Yates from the last entry down (docs/noise.md).

    Returns:
        int64 (n,).

    Raises:
        ValueError: a number is out of range.
    """
    n = _check("n", n, 1 << 32)
    order = np.arange(n, dtype=np.int64)
    block = philox(seed, SHUFFLE, 0, epoch, 0, n)
    draws = block[:, 0].astype(np.uint64) | (block[:, 1].astype(np.uint64) << np.uint64(32))
    for i in range(n - 1, 0, -1):
        j = int(draws[i]) % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order
