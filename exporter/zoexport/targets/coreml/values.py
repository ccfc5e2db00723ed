"""Values of a function in the making: types, and the conversions between them.

Numbers are of the type that a function computes in (fp32 or fp16). What leaves fp16's range, squares and what is made
of them, stays fp32 until a product, a root or a result needs it narrow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types
from numpy.typing import NDArray

FP32, FP16 = types.fp32, types.fp16
_FLOATS = (FP32, FP16)
NAMES = {FP32: "fp32", FP16: "fp16", types.int32: "int32", types.bool: "bool"}
_NUMPY = {FP32: np.float32, FP16: np.float16}
_LARGEST = float(np.finfo(np.float16).max)


def is_float(value: Any) -> bool:
    """Return whether a value is a floating-point tensor."""
    return isinstance(value, Var) and value.dtype in _FLOATS


def cast(value: Var, kind: Any) -> Var:
    """``value`` as ``kind``."""
    return value if value.dtype == kind else mb.cast(x=value, dtype=NAMES[kind])


def numbers(tensor: torch.Tensor | float | bool, kind: Any = FP32) -> NDArray[Any]:
    """Convert to the array of a constant: floats as ``kind``, integers as int32.

    Args:
        tensor: any number or tensor.
        kind: fp32 or fp16; values beyond fp16's range, as in masks, become half its largest number,
            so that adding a score does not overflow.
    """
    values = torch.as_tensor(tensor)
    if values.dtype == torch.bool:
        return values.numpy()
    if not values.dtype.is_floating_point:
        return values.numpy().astype(np.int32)
    wide = values.detach().float().numpy()
    outside = np.abs(wide) > _LARGEST
    array = np.where(outside, np.sign(wide) * _LARGEST / 2, wide) if kind == FP16 else wide
    return array.astype(_NUMPY[kind])


def constant(tensor: torch.Tensor | float | bool, kind: Any = FP32, shared: str = "") -> Var:
    """Return a constant of :func:`numbers`; functions store those of one name ``shared`` once."""
    array = numbers(tensor, kind)
    made = mb.const(val=array if array.ndim else array[()])
    if shared:
        made.op.weight_id = f"{shared}.{NAMES[kind]}"
    return made


def together(a: Any, b: Any) -> tuple[Any, Any]:
    """Promote two operands to one type: the wider one; a number takes the type of a tensor."""
    if not isinstance(a, Var):
        a, b = together(b, a)
        return b, a
    if not isinstance(b, Var):
        if a.dtype == types.bool or (a.dtype == types.int32 and isinstance(b, float)):
            a = cast(a, FP32)
        if a.dtype == FP16 and abs(b) > _LARGEST:
            b = float(np.clip(b, -_LARGEST, _LARGEST))
        return a, mb.const(
            val=np.float32(b)
            if a.dtype == FP32
            else np.float16(b)
            if a.dtype == FP16
            else np.int32(b)
        )
    if a.dtype == b.dtype:
        return a, b
    kind = FP32 if FP32 in (a.dtype, b.dtype) or not (is_float(a) or is_float(b)) else FP16
    if types.int32 in (a.dtype, b.dtype) and types.bool in (a.dtype, b.dtype):
        kind = types.int32
    return cast(a, kind), cast(b, kind)
