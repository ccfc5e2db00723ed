"""Operators on the inputs of products: 8-bit rounding and rotation; imported by ``ops``.

Both are bitwise identical here and on devices (``runtime_ops/kernels/activations.h``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoexport.core import activation_grids, hadamard
from zoexport.ir.declare import like, operator


@operator(like)
def round_activations(x: Tensor, format: Tensor) -> Tensor:
    """Every value on the grid of ``format`` (QuZO, appendices B.2 and B.3; ``core.activation_grids``).

    Args:
        x: float32, any shape. format: float32 (3), threshold, scale > 0 and float_scale > 0.

    Returns:
        float32, shape of ``x``.

    Raises:
        ValueError: an argument of another dtype or shape, or a scale that is not positive.
    """
    if x.dtype != torch.float32:
        raise ValueError(f"x is {x.dtype}; expected float32")
    if format.dtype != torch.float32 or format.shape != (3,):
        raise ValueError(f"format is {format.dtype} {tuple(format.shape)}; expected float32 (3)")
    if not bool((format[1:] > 0).all()):
        raise ValueError(f"format has the scales {format[1:].tolist()}; expected positive ones")
    return activation_grids.rounded(x.contiguous(), format)


@operator(like)
def rotate_rows(x: Tensor) -> Tensor:
    """Each block of a row times the Hadamard matrix (``core.hadamard``): float32 (..., K), the shape of x."""
    return hadamard.rotate_rows(x)
