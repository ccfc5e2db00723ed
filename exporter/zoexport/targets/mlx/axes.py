"""Operators over whole axes, and with indices as inputs, in MLX (see ``operators``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import torch

from zoexport.ir.graphs import aten
from zoexport.targets.mlx.operators import cast
from zoexport.targets.rules import Rule


def reductions() -> dict[Any, Rule]:
    """Operators over whole axes."""
    return {
        aten.amax: lambda x, dim=(), keepdim=False: mx.max(x, _axes(x, dim), keepdims=keepdim),
        aten.amin: lambda x, dim=(), keepdim=False: mx.min(x, _axes(x, dim), keepdims=keepdim),
        aten.cumsum: lambda x, dim, dtype=None: mx.cumsum(_summable(x, dtype), axis=dim),
        aten.layer_norm: _layer_norm,
        aten._log_softmax: lambda x, dim, half_to_float: _log_softmax(x, dim),
        aten.log_softmax: lambda x, dim, dtype=None: _log_softmax(cast(x, dtype), dim),
        aten.logsumexp: lambda x, dim, keepdim=False: mx.logsumexp(
            x, _axes(x, dim), keepdims=keepdim
        ),
        aten.mean: lambda x, dim=(), keepdim=False, dtype=None: mx.mean(
            cast(x, dtype), _axes(x, dim), keepdims=keepdim
        ),
        aten.native_layer_norm: _native_layer_norm,
        aten.rms_norm: _rms_norm,
        aten._softmax: lambda x, dim, half_to_float: mx.softmax(x, axis=dim),
        aten.softmax: lambda x, dim, dtype=None: mx.softmax(cast(x, dtype), axis=dim),
        aten.sum: lambda x, dim=(), keepdim=False, dtype=None: mx.sum(
            _summable(x, dtype), _axes(x, dim), keepdims=keepdim
        ),
        aten.var: _variance,
    }


def indexing() -> dict[Any, Rule]:
    """Operators whose places are values."""
    return {
        aten.gather: _gather,
        aten.index: lambda x, indices: x[_places(indices)],
        aten.index_put: _index_put,
        aten.index_select: lambda x, dim, index: mx.take(x, mx.flatten(index), axis=dim),
        aten.argmax: lambda x, dim=None, keepdim=False: mx.argmax(
            x, axis=dim, keepdims=keepdim
        ).astype(mx.int64),
    }


# --- reductions ------------------------------------------------------------------------------------


def _axes(x: mx.array, dims: Any) -> list[int]:
    """Return the given axes; all axes by default."""
    if isinstance(dims, int):
        return [dims]
    return list(dims) if dims else list(range(x.ndim))


def _summable(x: mx.array, dtype: torch.dtype | None) -> mx.array:
    """In the dtype of the sum: int64 for what is no fraction."""
    if dtype is None and not mx.issubdtype(x.dtype, mx.floating):
        return x.astype(mx.int64)
    return cast(x, dtype)


def _log_softmax(x: mx.array, dim: int) -> mx.array:
    # Less the greatest, whose digits a probability close to 1 does not have.
    shifted = x - mx.max(x, dim, keepdims=True)
    return shifted - mx.logsumexp(shifted, dim, keepdims=True)


def _check_one_axis(shape: Sequence[int]) -> None:
    if len(shape) != 1:
        raise NotImplementedError(f"a norm over {len(shape)} axes")


def _rms_norm(
    x: mx.array, shape: Sequence[int], weight: mx.array | None = None, eps: float | None = None
) -> mx.array:
    _check_one_axis(shape)
    return mx.fast.rms_norm(x, weight, torch.finfo(torch.float32).eps if eps is None else eps)


def _layer_norm(
    x: mx.array,
    shape: Sequence[int],
    weight: mx.array | None = None,
    bias: mx.array | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> mx.array:
    _check_one_axis(shape)
    return mx.fast.layer_norm(x, weight, bias, eps)


def _native_layer_norm(
    x: mx.array,
    shape: Sequence[int],
    weight: mx.array | None,
    bias: mx.array | None,
    eps: float,
) -> tuple[mx.array, mx.array, mx.array]:
    """The normalized rows, and the mean and 1 / standard deviation that its gradient reads."""
    axes = list(range(x.ndim - len(shape), x.ndim))
    mean = mx.mean(x, axes, keepdims=True)
    scale = mx.rsqrt(mx.mean(mx.square(x - mean), axes, keepdims=True) + eps)
    made = (x - mean) * scale
    made = made if weight is None else made * weight
    return made if bias is None else made + bias, mean, scale


def _variance(
    x: mx.array,
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> mx.array:
    if isinstance(dim, bool):  # var.default has ``unbiased`` in this place
        dim, unbiased = None, dim
    ddof = int(unbiased) if correction is None else correction
    return mx.var(x, _axes(x, dim), keepdims=keepdim, ddof=ddof)


# --- indexing --------------------------------------------------------------------------------------


def _gather(x: mx.array, dim: int, index: mx.array, **_: Any) -> mx.array:
    read = [slice(size) for size in index.shape]
    read[dim] = slice(None)
    return mx.take_along_axis(x[tuple(read)], index, axis=dim)


def _places(indices: Sequence[mx.array | None]) -> tuple[Any, ...]:
    if any(index is not None and index.dtype == mx.bool_ for index in indices):
        raise NotImplementedError("indices that are a mask")
    return tuple(slice(None) if index is None else index for index in indices)


def _index_put(
    x: mx.array, indices: Sequence[mx.array | None], values: mx.array, accumulate: bool = False
) -> mx.array:
    places = _places(indices)
    if accumulate:
        return x.at[places].add(values)
    made = mx.array(x)
    made[places] = values
    return made
