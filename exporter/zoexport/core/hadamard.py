"""The block Hadamard rotation of rows, which spreads outliers before int8 rounding (docs/int4.md).

A row of int8 codes has one scale. A few large values, which language models have, take the range and leave the others
few levels. An orthogonal rotation R of the input spreads them: x W^T = (x R) (W R)^T.
"""

from __future__ import annotations

import torch

BLOCK = 32
"""Inputs that a block mixes, as many as a group of weights has. Blocks of 64 would spread outliers a little further,
for twice the multiplications, and mix the weights of two groups."""


def matrix() -> torch.Tensor:
    """Sylvester's matrix over sqrt(BLOCK): float32 (BLOCK, BLOCK), symmetric and its own inverse."""
    signs = torch.ones(1, 1)
    while signs.shape[0] < BLOCK:
        signs = torch.cat([torch.cat([signs, signs], 1), torch.cat([signs, -signs], 1)])
    return signs / BLOCK**0.5


def can_rotate(width: int) -> bool:
    """Whether rows of ``width`` are made of whole blocks."""
    return width % BLOCK == 0


def rotate_rows(x: torch.Tensor) -> torch.Tensor:
    """Each run of BLOCK values of a row times :func:`matrix`: float32 (..., K), the shape of ``x``."""
    return (x.unflatten(-1, (-1, BLOCK)) @ matrix()).flatten(-2)
