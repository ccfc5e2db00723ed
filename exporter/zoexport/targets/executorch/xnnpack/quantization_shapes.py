"""The shapes of torchao's quantization operators, stated.

torchao implements them by compositions of operators, so that every pass that retraces a program runs some twenty of
those on fake tensors for each quantized product, only to learn a shape.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torchao.quantization.quant_primitives  # noqa: F401  (registers the operators)
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor

_torchao = torch.ops.torchao
_KEY = DispatchKey.CompositeImplicitAutograd


def _quantize_affine(
    x: torch.Tensor,
    block_size: Sequence[int],
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    output_dtype: torch.dtype,
    *_: Any,
) -> torch.Tensor:
    return x.new_empty(x.shape, dtype=output_dtype)


def _dequantize_affine(
    x: torch.Tensor,
    block_size: Sequence[int],
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    input_dtype: torch.dtype,
    quant_min: int | None = None,
    quant_max: int | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    return x.new_empty(x.shape, dtype=output_dtype)


def _choose_qparams_affine(
    x: torch.Tensor,
    mapping_type: str,
    block_size: Sequence[int],
    target_dtype: torch.dtype,
    quant_min: int | None = None,
    quant_max: int | None = None,
    eps: float | None = None,
    scale_dtype: torch.dtype | None = None,
    zero_point_dtype: torch.dtype | None = torch.int32,
    keepdim: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = [size // block for size, block in zip(x.shape, block_size, strict=True)]
    return (
        x.new_empty(blocks, dtype=scale_dtype or x.dtype),
        x.new_empty(blocks, dtype=zero_point_dtype or torch.int32),
    )


_SHAPES: dict[Any, Callable[..., Any]] = {
    _torchao.quantize_affine.default: _quantize_affine,
    _torchao.dequantize_affine.default: _dequantize_affine,
    _torchao.choose_qparams_affine.default: _choose_qparams_affine,
}


def _or_computed(shape: Callable[..., Any], operator: Any) -> Callable[..., Any]:
    """``shape`` for fake tensors; torchao's own implementation for others."""

    def kernel(x: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if isinstance(x, FakeTensor):
            return shape(x, *arguments, **named)
        return operator._op_dk(_KEY, x, *arguments, **named)

    return kernel


@contextlib.contextmanager
def stated_shapes() -> Iterator[None]:
    """While this is open, the operators give empty results for fake tensors; others are computed as ever."""
    before = {operator: dict(operator.py_kernels) for operator in _SHAPES}
    for operator, shape in _SHAPES.items():
        operator.py_impl(_KEY)(_or_computed(shape, operator))
    try:
        yield
    finally:
        for operator, kernels in before.items():
            operator.py_kernels.clear()
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()
