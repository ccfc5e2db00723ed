"""Operators that move elements or reduce whole axes, in MIL (see ``elementwise``)."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from zoexport.ir.graphs import aten
from zoexport.targets.coreml.values import FP32, cast, constant, is_float, together
from zoexport.targets.rules import Rule


def shapes() -> dict[Any, Rule]:
    """Operators that move elements or make them from numbers."""
    return {
        **dict.fromkeys((aten.alias, aten.clone, aten.contiguous, aten.detach), _same),
        **dict.fromkeys((aten.reshape, aten.view, aten._unsafe_view), _reshape),
        aten.arange: lambda count: constant(torch.arange(count)),
        aten.cat: lambda parts, dim=0: mb.concat(values=_alike(parts), axis=dim),
        aten.chunk: _chunk,
        aten.expand: _expand,
        aten.flatten: _flatten,
        aten.full: lambda sizes, value, **_: _full(sizes, value),
        aten.index: _index,
        aten.index_add: _index_add,
        aten.index_put: _index_put,
        aten.index_select: lambda x, dim, index: _gather(x, index, dim),
        aten.permute: lambda x, dims: mb.transpose(x=x, perm=[dim % x.rank for dim in dims]),
        aten.repeat: _repeat,
        aten.scalar_tensor: lambda value, **_: constant(float(value)),
        aten.select: lambda x, dim, index: mb.squeeze(
            x=_cut(x, dim, index % x.shape[dim], index % x.shape[dim] + 1), axes=[dim]
        ),
        aten.slice: _slice,
        aten.slice_scatter: _slice_scatter,
        aten.split: _split,
        aten.split_with_sizes: _split,
        aten.squeeze: _squeeze,
        aten.stack: lambda parts, dim=0: mb.stack(values=_alike(parts), axis=dim),
        aten.t: lambda x: mb.transpose(x=x, perm=[1, 0]),
        aten.transpose: _transpose,
        aten.unsqueeze: lambda x, dim: mb.expand_dims(x=x, axes=[dim]),
        operator.getitem: operator.getitem,
    }


def reductions() -> dict[Any, Rule]:
    """Operators over whole axes. Sums and means of fp16 are fp32, as they may leave its range."""
    return {
        aten.amax: lambda x, dim=(), keepdim=False: mb.reduce_max(
            x=x, axes=_axes(x, dim), keep_dims=keepdim
        ),
        aten.layer_norm: _layer_norm,
        aten.logsumexp: lambda x, dim, keepdim=False: mb.reduce_log_sum_exp(
            x=_wide(x), axes=_axes(x, dim), keep_dims=keepdim
        ),
        aten.mean: lambda x, dim=(), keepdim=False, **_: mb.reduce_mean(
            x=_wide(x), axes=_axes(x, dim), keep_dims=keepdim
        ),
        aten.native_layer_norm: _native_layer_norm,
        aten._softmax: lambda x, dim, _half: mb.softmax(x=x, axis=dim),
        aten.softmax: lambda x, dim, *_, **__: mb.softmax(x=x, axis=dim),
        aten.sum: lambda x, dim=(), keepdim=False, **_: mb.reduce_sum(
            x=_wide(x), axes=_axes(x, dim), keep_dims=keepdim
        ),
    }


def _full(sizes: Sequence[int], value: float) -> Var:
    """Made when it is read: as a constant it would be stored."""
    if not sizes:
        return constant(float(value))
    return mb.fill(shape=list(sizes), value=np.float32(value))


def _same(x: Var, *_: Any, **__: Any) -> Var:
    return x


def _wide(x: Var) -> Var:
    return cast(x, FP32)


def _axes(x: Var, dims: Any) -> list[int]:
    """Return the given axes; all axes by default."""
    if isinstance(dims, int):
        return [dims]
    return list(dims) if dims else list(range(x.rank))


def _alike(parts: Sequence[Var]) -> list[Var]:
    """Values of one type, the widest of theirs."""
    wide = any(is_float(part) and part.dtype == FP32 for part in parts)
    return [cast(part, FP32) if wide else part for part in parts]


def _reshape(x: Var, sizes: Sequence[int]) -> Var:
    if x.rank == 0 or not sizes:
        return x if not sizes and x.rank == 0 else mb.reshape(x=x, shape=list(sizes) or [1])
    return mb.reshape(x=x, shape=list(sizes))


def _flatten(x: Var, start: int = 0, end: int = -1) -> Var:
    start, end = start % x.rank, end % x.rank
    return mb.reshape(x=x, shape=[*x.shape[:start], -1, *x.shape[end + 1 :]])


def _transpose(x: Var, first: int, second: int) -> Var:
    order = list(range(x.rank))
    order[first], order[second] = order[second], order[first]
    return mb.transpose(x=x, perm=order)


def _expand(x: Var, sizes: Sequence[int], **_: Any) -> Var:
    missing = len(sizes) - x.rank
    known = [1] * missing + list(x.shape)
    made = mb.reshape(x=x, shape=known) if missing else x
    times = [1 if new in (-1, old) else new for new, old in zip(sizes, known, strict=True)]
    return mb.tile(x=made, reps=times) if max(times) > 1 else made


def _repeat(x: Var, repeats: Sequence[int]) -> Var:
    missing = len(repeats) - x.rank
    made = mb.expand_dims(x=x, axes=list(range(missing))) if missing else x
    return mb.tile(x=made, reps=list(repeats))


def _squeeze(x: Var, dims: Any = None) -> Var:
    chosen = range(x.rank) if dims is None else [dims] if isinstance(dims, int) else dims
    axes = [dim for dim in chosen if x.shape[dim] == 1]
    return mb.squeeze(x=x, axes=axes) if axes else x


def _cut(x: Var, dim: int, begin: int, end: int, step: int = 1) -> Var:
    """Elements ``begin`` to ``end`` along an axis."""
    dim %= x.rank
    if (begin, end, step) == (0, x.shape[dim], 1):
        return x
    begins, ends, steps = [0] * x.rank, list(x.shape), [1] * x.rank
    begins[dim], ends[dim], steps[dim] = begin, end, step
    return mb.slice_by_index(x=x, begin=begins, end=ends, stride=steps)


def _slice(
    x: Var, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Var:
    begin, stop, step = slice(start, end, step).indices(x.shape[dim])
    return _cut(x, dim, begin, stop, step)


def _slice_scatter(
    x: Var,
    part: Var,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Var:
    begin, stop, step = slice(start, end, step).indices(x.shape[dim])
    x = cast(x, part.dtype)
    if step != 1:
        begins, ends, steps = [0] * x.rank, list(x.shape), [1] * x.rank
        begins[dim], ends[dim], steps[dim] = begin, stop, step
        return mb.slice_update(x=x, update=part, begin=begins, end=ends, stride=steps)
    pieces = [
        _cut(x, dim, 0, begin) if begin else None,
        part,
        _cut(x, dim, stop, x.shape[dim]) if stop < x.shape[dim] else None,
    ]
    found = [piece for piece in pieces if piece is not None]
    return mb.concat(values=found, axis=dim) if len(found) > 1 else part


def _split(x: Var, sizes: int | Sequence[int], dim: int = 0) -> list[Var]:
    total = x.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - begin) for begin in range(0, total, sizes)]
    places = np.cumsum([0, *sizes]).tolist()
    return [_cut(x, dim, begin, end) for begin, end in itertools.pairwise(places)]


def _chunk(x: Var, chunks: int, dim: int = 0) -> list[Var]:
    return _split(x, -(-x.shape[dim] // chunks), dim)


def _gather(x: Var, index: Var, dim: int) -> Var:
    return mb.gather(x=x, indices=index, axis=dim, validate_indices=False)


def _only_index(indices: Sequence[Var | None]) -> tuple[int, Var]:
    found = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(found) != 1 or found[0][1].dtype == types.bool:
        raise NotImplementedError("several indices, or a mask")
    return found[0]


def _index(x: Var, indices: Sequence[Var | None]) -> Var:
    dim, index = _only_index(indices)
    return _gather(x, index, dim)


def _index_add(x: Var, dim: int, index: Var, values: Var) -> Var:
    """``values`` added to the slices of an axis that ``index`` numbers, which it may name twice."""
    data, updates = together(x, values)
    return mb.scatter(
        data=data, indices=index, updates=updates, axis=dim, mode="add", validate_indices=False
    )


def _index_put(x: Var, indices: Sequence[Var | None], values: Var, accumulate: bool = False) -> Var:
    """Rows added where an index says, which may name one twice: a product with ones at those places."""
    dim, index = _only_index(indices)
    if not accumulate or index.val is None or index.rank != 1:
        raise NotImplementedError("places that are not constant, or replaced")
    ones = np.zeros((x.shape[dim], len(index.val)), np.float32)
    ones[index.val, np.arange(len(index.val))] = 1
    order = [axis for axis in range(x.rank) if axis != dim] + [dim]
    moved = mb.transpose(x=cast(values, FP32), perm=order)
    added = mb.matmul(x=moved, y=constant(torch.from_numpy(ones.T.copy())))
    back = [order.index(axis) for axis in range(x.rank)]
    a, b = together(x, mb.transpose(x=added, perm=back))
    return mb.add(x=a, y=b)


def _layer_norm(
    x: Var,
    shape: Sequence[int],
    weight: Var | None = None,
    bias: Var | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Var:
    return _native_layer_norm(x, shape, weight, bias, eps)[0]


def _native_layer_norm(
    x: Var, shape: Sequence[int], weight: Var | None, bias: Var | None, eps: float
) -> tuple[Var, Var, Var]:
    """The normalized rows, and the mean and 1 / standard deviation that its gradient reads."""
    axes = list(range(x.rank - len(shape), x.rank))
    wide = cast(x, FP32)
    mean = mb.reduce_mean(x=wide, axes=axes, keep_dims=True)
    centered = mb.sub(x=wide, y=mean)
    spread = mb.reduce_mean(x=mb.square(x=centered), axes=axes, keep_dims=True)
    scale = mb.rsqrt(x=mb.add(x=spread, y=np.float32(eps)), epsilon=0.0)
    made = mb.mul(x=centered, y=scale)
    made = made if weight is None else mb.mul(x=made, y=cast(weight, FP32))
    return made if bias is None else mb.add(x=made, y=cast(bias, FP32)), mean, scale
