"""Elementwise and shape operators in MLX.

A rule takes an operator's arguments, with tensors as MLX arrays, and returns an array or a tuple.
Rules over whole axes are in ``axes``, those of products and quantized weights in ``products``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import torch

from zoexport.ir.graphs import aten
from zoexport.targets.rules import Rule

DTYPES = {
    torch.float32: mx.float32,
    torch.float64: mx.float32,  # numbers of a configuration; MLX's GPU has no doubles
    torch.float16: mx.float16,
    torch.bfloat16: mx.bfloat16,
    torch.int64: mx.int64,
    torch.int32: mx.int32,
    torch.int8: mx.int8,
    torch.uint8: mx.uint8,
    torch.uint32: mx.uint32,
    torch.bool: mx.bool_,
}


def elementwise() -> dict[Any, Rule]:
    """Operators on each element alone."""
    return {
        aten.abs: mx.abs,
        aten.add: _arithmetic(mx.add),
        aten.bitwise_and: mx.bitwise_and,
        aten.bitwise_not: _bitwise_not,
        aten.bitwise_or: mx.bitwise_or,
        aten.ceil: mx.ceil,
        aten.clamp: lambda x, min=None, max=None: mx.clip(x, min, max),
        aten.clamp_max: lambda x, most: mx.minimum(x, most),
        aten.clamp_min: lambda x, least: mx.maximum(x, least),
        aten.cos: mx.cos,
        aten.div: _div,
        aten.elu: _elu,
        aten.eq: mx.equal,
        aten.erf: mx.erf,
        aten.exp: mx.exp,
        aten.expm1: mx.expm1,
        aten.floor: mx.floor,
        aten.ge: mx.greater_equal,
        aten.gelu: _gelu,
        aten.gt: mx.greater,
        aten.le: mx.less_equal,
        aten.log: mx.log,
        aten.log1p: mx.log1p,
        aten.logical_and: mx.logical_and,
        aten.logical_not: mx.logical_not,
        aten.logical_or: mx.logical_or,
        aten.lt: mx.less,
        aten.masked_fill: _masked_fill,
        aten.maximum: mx.maximum,
        aten.minimum: mx.minimum,
        aten.mul: _arithmetic(mx.multiply),
        aten.ne: mx.not_equal,
        aten.neg: mx.negative,
        aten.pow: _power,
        aten.reciprocal: mx.reciprocal,
        aten.remainder: mx.remainder,
        aten.relu: lambda x: mx.maximum(x, 0),
        aten.round: mx.round,
        aten.rsqrt: mx.rsqrt,
        aten.rsub: lambda a, b, alpha=1: _arithmetic(mx.subtract)(b, a, alpha),
        aten.sigmoid: mx.sigmoid,
        aten.sign: mx.sign,
        aten.silu: lambda x: x * mx.sigmoid(x),
        aten.sin: mx.sin,
        aten.softplus: _softplus,
        aten.sqrt: mx.sqrt,
        aten.sub: _arithmetic(mx.subtract),
        aten.tanh: mx.tanh,
        aten.where: lambda mask, a, b: mx.where(mask, *_wide(a, b)),
    }


def shapes() -> dict[Any, Rule]:
    """Operators that move elements or make them from numbers."""
    return {
        aten.alias: _same,
        aten.arange: _arange,
        aten.cat: lambda parts, dim=0: mx.concatenate(parts, axis=dim),
        aten.chunk: _chunk,
        aten.clone: _same,
        aten.constant_pad_nd: _pad,
        aten.contiguous: _same,
        aten.detach: _same,
        aten.dropout: _dropout,
        aten.expand: _expand,
        aten.flatten: lambda x, start=0, end=-1: mx.flatten(x, start, end),
        aten.flip: _flip,
        aten.full: lambda sizes, value, **kwargs: _full(sizes, value, _dtype(kwargs, value)),
        aten.full_like: lambda x, value, **kwargs: _full(
            x.shape, value, _dtype(kwargs, like=x.dtype)
        ),
        aten.lift_fresh_copy: _same,
        aten.ones: lambda sizes, **kwargs: mx.ones(sizes, _dtype(kwargs, 1.0)),
        aten.ones_like: lambda x, **kwargs: mx.ones(x.shape, _dtype(kwargs, like=x.dtype)),
        aten.permute: mx.transpose,
        aten.repeat: _repeat,
        aten.reshape: mx.reshape,
        aten.scalar_tensor: lambda value, **kwargs: _full((), value, _dtype(kwargs, 1.0)),
        aten.select: lambda x, dim, index: mx.take(x, index % x.shape[dim], axis=dim),
        aten.slice: _slice,
        aten.slice_scatter: _slice_scatter,
        aten.split: _split,
        aten.split_with_sizes: _split,
        aten.squeeze: _squeeze,
        aten.stack: lambda parts, dim=0: mx.stack(parts, axis=dim),
        aten.t: lambda x: x.T,
        aten.to: _to,
        aten._to_copy: lambda x, **kwargs: x.astype(_dtype(kwargs, like=x.dtype)),
        aten.transpose: mx.swapaxes,
        aten.tril: lambda x, diagonal=0: mx.tril(x, diagonal),
        aten.triu: lambda x, diagonal=0: mx.triu(x, diagonal),
        aten.type_as: lambda x, like: x.astype(like.dtype),
        aten.unbind: lambda x, dim=0: tuple(
            mx.take(x, index, axis=dim) for index in range(x.shape[dim])
        ),
        aten.unflatten: lambda x, dim, sizes: mx.unflatten(x, dim, sizes),
        aten.unsqueeze: mx.expand_dims,
        aten._unsafe_view: mx.reshape,
        aten.view: mx.reshape,
        aten.zeros: lambda sizes, **kwargs: mx.zeros(sizes, _dtype(kwargs, 1.0)),
        aten.zeros_like: lambda x, **kwargs: mx.zeros(x.shape, _dtype(kwargs, like=x.dtype)),
    }


# --- elementwise -----------------------------------------------------------------------------------


def _wide(a: Any, b: Any) -> tuple[Any, Any]:
    """Make Python integers int64 if the other operand is bool, as in torch; MLX uses int32."""
    if any(isinstance(operand, mx.array) and operand.dtype != mx.bool_ for operand in (a, b)):
        return a, b
    wide = [mx.array(each, mx.int64) if type(each) is int else each for each in (a, b)]
    return wide[0], wide[1]


def _arithmetic(function: Rule) -> Rule:
    """A rule for ``function(a, b)``, with b multiplied by ``alpha`` first where that is given."""

    def rule(a: Any, b: Any, alpha: float = 1) -> mx.array:
        a, b = _wide(a, b)
        return function(a, b if alpha == 1 else alpha * b)

    return rule


def _masked_fill(x: mx.array, mask: mx.array, value: Any) -> mx.array:
    return mx.where(mask, value, x).astype(x.dtype)


def _bitwise_not(x: mx.array) -> mx.array:
    # MLX cannot write its own to a file.
    return mx.logical_not(x) if x.dtype == mx.bool_ else -1 - x


def _div(a: Any, b: Any, rounding_mode: str | None = None) -> mx.array:
    if rounding_mode is None:
        return mx.divide(a, b)
    if rounding_mode == "floor":
        return mx.floor_divide(a, b)
    raise NotImplementedError(f"rounding_mode={rounding_mode}")


def _elu(x: mx.array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> mx.array:
    below = alpha * mx.expm1(mx.minimum(x, 0) * input_scale)
    return scale * mx.where(x > 0, x, below)


def _gelu(x: mx.array, approximate: str = "none") -> mx.array:
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1 + mx.tanh(inner))
    return 0.5 * x * (1 + mx.erf(x * math.sqrt(0.5)))


def _power(base: Any, exponent: Any) -> mx.array:
    if isinstance(exponent, float) and not mx.issubdtype(base.dtype, mx.floating):
        base = base.astype(mx.float32)
    if isinstance(exponent, int | float) and exponent in (2, 3):
        return mx.square(base) if exponent == 2 else base * base * base
    return mx.power(base, exponent)


def _softplus(x: mx.array, beta: float = 1.0, threshold: float = 20.0) -> mx.array:
    return mx.where(beta * x > threshold, x, mx.logaddexp(beta * x, mx.array(0.0)) / beta)


# --- shapes ----------------------------------------------------------------------------------------


def _same(x: mx.array, **_: Any) -> mx.array:
    return x


def _dtype(kwargs: dict[str, Any], value: Any = None, like: Any = None) -> Any:
    """The dtype that a call names, else the one of ``like`` or what torch takes for a number."""
    if kwargs.get("dtype") is not None:
        return DTYPES[kwargs["dtype"]]
    if like is not None:
        return like
    if isinstance(value, bool):
        return mx.bool_
    return mx.int64 if isinstance(value, int) else mx.float32


def cast(x: mx.array, dtype: torch.dtype | None) -> mx.array:
    """In a dtype that a call may name."""
    return x if dtype is None else x.astype(DTYPES[dtype])


def _to(x: mx.array, *targets: Any, **kwargs: Any) -> mx.array:
    """Every overload: a dtype or another tensor counts, by place or name, and a device does not."""
    for target in (*targets, *kwargs.values()):
        if isinstance(target, torch.dtype):
            return cast(x, target)
        if isinstance(target, mx.array):
            return x.astype(target.dtype)
    return x


def _full(sizes: Sequence[int], value: Any, dtype: Any) -> mx.array:
    # MLX returns int32 for an integer value even if dtype is bool.
    return mx.full(sizes, mx.array(value).astype(dtype))


def _arange(*limits: Any, **kwargs: Any) -> mx.array:
    start, stop, step = (
        limits if len(limits) == 3 else (*((0,) if len(limits) == 1 else ()), *limits, 1)
    )
    number = 1.0 if any(isinstance(limit, float) for limit in limits) else 1
    return mx.arange(start, stop, step, dtype=_dtype(kwargs, number))


def _chunk(x: mx.array, chunks: int, dim: int = 0) -> list[Any]:
    return _split(x, -(-x.shape[dim] // chunks), dim)


def _split(x: mx.array, sizes: int | Sequence[int], dim: int = 0) -> list[Any]:
    total = x.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - begin) for begin in range(0, total, sizes)]
    places = [sum(sizes[: number + 1]) for number in range(len(sizes) - 1)]
    return list(mx.split(x, places, axis=dim)) if places else [x]


def _dropout(x: mx.array, _probability: float, training: bool) -> mx.array:
    if training:
        raise NotImplementedError("dropout while training")
    return x


def _expand(x: mx.array, sizes: Sequence[int], **_: Any) -> mx.array:
    known = [1] * (len(sizes) - x.ndim) + list(x.shape)
    return mx.broadcast_to(
        x, [old if new == -1 else new for new, old in zip(sizes, known, strict=True)]
    )


def _flip(x: mx.array, dims: Sequence[int]) -> mx.array:
    places: list[Any] = [slice(None)] * x.ndim
    for dim in dims:
        places[dim] = slice(None, None, -1)
    return x[tuple(places)]


def _pad(x: mx.array, pads: Sequence[int], value: float = 0.0) -> mx.array:
    if min(pads) < 0:
        raise NotImplementedError("a negative padding")
    pairs = [(0, 0)] * (x.ndim - len(pads) // 2)
    pairs += [(pads[place], pads[place + 1]) for place in range(len(pads) - 2, -1, -2)]
    return mx.pad(x, pairs, constant_values=mx.array(value, x.dtype))


def _repeat(x: mx.array, repeats: Sequence[int]) -> mx.array:
    return mx.tile(x, list(repeats))


def _range(x: mx.array, dim: int, start: int | None, end: int | None, step: int) -> tuple[Any, ...]:
    places: list[Any] = [slice(None)] * x.ndim
    places[dim] = slice(*slice(start, end, step).indices(x.shape[dim]))
    return tuple(places)


def _slice(
    x: mx.array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> mx.array:
    return x[_range(x, dim, start, end, step)]


def _slice_scatter(
    x: mx.array,
    part: mx.array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> mx.array:
    made = mx.array(x)
    made[_range(x, dim, start, end, step)] = part
    return made


def _squeeze(x: mx.array, dims: Any = None) -> mx.array:
    chosen = range(x.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    return mx.squeeze(x, [dim for dim in chosen if x.shape[dim] == 1])
