"""The block Hadamard rotation of rows, which spreads outliers before int8 rounding (docs/formats.md).

Neighbours that are rounded to int8 have one scale. A few large values, which language models have, take the range and
leave the others few levels. An orthogonal rotation R of the input spreads them: x W^T = (x R) (W R)^T. R is Sylvester's
matrix over sqrt(BLOCK), in blocks along the diagonal: symmetric and its own inverse.
"""

from __future__ import annotations

import torch

BLOCK = 32
"""Inputs that a block mixes, as many as are rounded together. Blocks of 64 would spread outliers a little further, and
mix the weights of two groups."""
_FACTOR = BLOCK**-0.5


def can_rotate(width: int) -> bool:
    """Return whether ``width`` is a multiple of the block size."""
    return width % BLOCK == 0


def rotate_rows(x: torch.Tensor) -> torch.Tensor:
    """Multiply each run of BLOCK values of a row by R: float32 (..., K), the shape of ``x``.

    Sums and differences of values 1, 2, 4, 8 and 16 apart, then a factor: ``runtime_ops/kernels/activations.h`` has the
    same bits.
    """
    distance = 1
    value = x
    while distance < BLOCK:
        first, second = value.reshape(*x.shape[:-1], -1, 2, distance).unbind(-2)
        value = torch.stack([first + second, first - second], -2)
        distance *= 2
    return value.reshape(x.shape) * _FACTOR


def rotation_gain(x: torch.Tensor) -> float:
    """Return the int8 rounding error of rows ``x`` (..., K) before over after rotation; 1 for zeros.

    BLOCK neighbours share a scale. Errors are relative to their row; the root mean square counts.
    """
    before, after = (_rounding_error(rows) for rows in (x, rotate_rows(x)))
    if before == 0:
        return 1.0
    return before / max(after, torch.finfo(torch.float32).tiny)


def _rounding_error(x: torch.Tensor) -> float:
    step = x.unflatten(-1, (-1, BLOCK)).abs().amax(-1) / 127
    error, power = step.square().mean(-1) / 12, x.square().mean(-1)
    return float((error / power.clamp(min=torch.finfo(torch.float32).tiny)).mean().sqrt())
