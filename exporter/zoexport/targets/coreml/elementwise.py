"""Elementwise operators in MIL, Core ML's Model Intermediate Language.

A rule takes an operator's arguments, with tensors as MIL values, and returns a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from zoexport.ir.graphs import aten
from zoexport.targets.coreml.values import FP32, cast, is_float, together
from zoexport.targets.rules import Rule


def elementwise() -> dict[Any, Rule]:
    """Operators on each element alone."""
    return {
        **_BINARY,
        aten.add: _add,
        aten.sub: _sub,
        aten.rsub: lambda a, b, alpha=1: _sub(b, a, alpha),
        aten.to: _to,
        aten._to_copy: lambda x, dtype=None, **_: _to(x, dtype),
        aten.abs: lambda x: mb.abs(x=x),
        aten.clamp: _clamp,
        aten.cos: lambda x: mb.cos(x=x),
        aten.erf: lambda x: mb.erf(x=x),
        aten.exp: lambda x: mb.exp(x=x),
        aten.expm1: lambda x: _sub(mb.exp(x=x), 1.0),
        aten.gelu: _gelu,
        aten.log: lambda x: mb.log(x=cast(x, FP32), epsilon=0.0),
        aten.log1p: lambda x: mb.log(x=_add(cast(x, FP32), 1.0), epsilon=0.0),
        aten.masked_fill: lambda x, mask, value: _where(mask, value, x),
        aten.neg: lambda x: _mul(x, -1.0),
        aten.pow: _power,
        aten.reciprocal: lambda x: mb.inverse(x=x, epsilon=0.0),
        aten.relu: lambda x: mb.relu(x=x),
        aten.rsqrt: lambda x: mb.rsqrt(x=x, epsilon=0.0),
        aten.sigmoid: lambda x: mb.sigmoid(x=x),
        aten.silu: lambda x: _mul(x, mb.sigmoid(x=x)),
        aten.sin: lambda x: mb.sin(x=x),
        aten.softplus: _softplus,
        aten.sqrt: lambda x: mb.sqrt(x=x),
        aten.tanh: lambda x: mb.tanh(x=x),
        aten.where: _where,
    }


def _binary(build: Callable[..., Var]) -> Rule:
    def rule(a: Any, b: Any) -> Var:
        x, y = together(a, b)
        return build(x=x, y=y)

    return rule


_BINARY: dict[Any, Rule] = {
    aten.div: _binary(mb.real_div),
    aten.eq: _binary(mb.equal),
    aten.ge: _binary(mb.greater_equal),
    aten.gt: _binary(mb.greater),
    aten.le: _binary(mb.less_equal),
    aten.logical_and: _binary(mb.logical_and),
    aten.logical_or: _binary(mb.logical_or),
    aten.lt: _binary(mb.less),
    aten.maximum: _binary(mb.maximum),
    aten.minimum: _binary(mb.minimum),
    aten.mul: _binary(mb.mul),
    aten.ne: _binary(mb.not_equal),
    aten.remainder: _binary(mb.mod),
}
_mul, _div = _BINARY[aten.mul], _BINARY[aten.div]


def _add(a: Any, b: Any, alpha: float = 1) -> Var:
    x, y = together(a, b if alpha == 1 else _mul(b, alpha))
    return mb.add(x=x, y=y)


def _sub(a: Any, b: Any, alpha: float = 1) -> Var:
    x, y = together(a, b if alpha == 1 else _mul(b, alpha))
    return mb.sub(x=x, y=y)


def _clamp(x: Var, low: float | None = None, high: float | None = None) -> Var:
    made = x if low is None else _BINARY[aten.maximum](x, low)
    return made if high is None else _BINARY[aten.minimum](made, high)


def _gelu(x: Var, approximate: str = "none") -> Var:
    if approximate == "tanh":
        inner = _mul(_add(x, _mul(_mul(_mul(x, x), x), 0.044715)), math.sqrt(2 / math.pi))
        return _mul(_mul(x, 0.5), _add(mb.tanh(x=inner), 1.0))
    return _mul(_mul(x, 0.5), _add(mb.erf(x=_mul(x, math.sqrt(0.5))), 1.0))


def _softplus(x: Var, beta: float = 1.0, threshold: float = 20.0) -> Var:
    """The threshold is left out: above one of 20, float32 has no digit for the difference."""
    if threshold < 20:
        raise TypeError(f"threshold={threshold}")
    return _mul(mb.softplus(x=_mul(x, beta)), 1 / beta)


def _power(base: Any, exponent: Any) -> Var:
    """Powers leave the range of fp16: they are fp32, and so is what is made of them."""
    wide = cast(base, FP32) if is_float(base) else base
    if exponent == 2:
        return mb.square(x=wide)
    if exponent == 3:
        return mb.mul(x=mb.square(x=wide), y=wide)
    x, y = together(wide, float(exponent) if isinstance(exponent, int) else exponent)
    return mb.pow(x=x, y=y)


def _to(x: Var, kind: Any, *_: Any, **__: Any) -> Var:
    """Numbers stay what the function computes in."""
    if not isinstance(kind, torch.dtype) or (kind.is_floating_point and is_float(x)):
        return x
    if kind.is_floating_point:
        return cast(x, FP32)
    return cast(x, types.bool if kind == torch.bool else types.int32)


def _where(condition: Var, a: Any, b: Any) -> Var:
    if not isinstance(a, Var) and not isinstance(b, Var):
        raise NotImplementedError("where of two numbers")
    x, y = together(a, b)
    return mb.select(cond=cast(condition, types.bool), a=_like(x, y), b=_like(y, x))


def _like(x: Var, y: Var) -> Var:
    """Return a number as a tensor of another's shape: both branches of a select have one."""
    return mb.fill_like(ref_tensor=y, value=x) if x.rank == 0 and y.rank > 0 else x
