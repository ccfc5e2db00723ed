"""The block Hadamard rotation of rows, which spreads outliers before int8 rounding (docs/int4.md).

A row of int8 codes has one scale. A few large values, which language models have, take the range and leave the others
few levels. An orthogonal rotation R of the input spreads them: x W^T = (x R) (W R)^T.
"""

from __future__ import annotations

import torch

_SIZES = (64, 32)


def block_size(width: int) -> int | None:
    """Inputs that a block mixes for rows of ``width``: the largest of 64 and 32 that divides it, or None."""
    return next((size for size in _SIZES if width % size == 0), None)


def matrix(size: int) -> torch.Tensor:
    """Sylvester's matrix over sqrt(size): float32 (size, size), symmetric and its own inverse.

    Args:
        size: a power of two.
    """
    signs = torch.ones(1, 1)
    while signs.shape[0] < size:
        signs = torch.cat([torch.cat([signs, signs], 1), torch.cat([signs, -signs], 1)])
    return signs / size**0.5


def rotate_rows(x: torch.Tensor, block: int) -> torch.Tensor:
    """Each run of ``block`` values of a row times :func:`matrix`: float32 (..., K), the shape of ``x``."""
    return (x.unflatten(-1, (-1, block)) @ matrix(block)).flatten(-2)
