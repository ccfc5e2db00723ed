"""Matrix products, as operators of namespace ``zoexport``; ``ops`` imports this module.

These are torch's own results: a device adds up in another order (``runtime_ops/kernels/products.h``).
"""

from __future__ import annotations

from typing import Any

import torch

from zoexport.core import int4
from zoexport.ir.op_schemas import cpu, differentiable, fake

ROUNDED_GROUP = 32
"""Neighbours that :func:`rounded_rows` rounds by one scale."""
LEAST_ROUNDED = 1e-30
"""A group's greatest magnitude below which its reciprocal may not be finite."""

# --- linear layers over quantized weights ---------------------------------------------------------


@cpu("linear_int4")
def linear_int4(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """x W^T (+ bias) with float32 activations and accumulation; differentiable in x alone.

    Args:
        x: float32 (..., K). codes, scales: see docs/int4.md. bias: float32 (N) or None.

    Returns:
        float32 (..., N).
    """
    return torch.nn.functional.linear(x, int4.dequantize_int4(codes, scales), bias)


@cpu("rounded_linear")
def rounded_linear(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """:func:`linear_int4` or, of codes int8, :func:`linear_int8` of x rounded to 8 bits (:func:`rounded_rows`)."""
    linear = linear_int8 if codes.dtype == torch.int8 else linear_int4
    return linear(rounded_rows(x), codes, scales, bias)


@cpu("rounded_linears_2")
@cpu("rounded_linears_3")
def rounded_linears(x: torch.Tensor, *weights: Any) -> tuple[torch.Tensor, ...]:
    """:func:`rounded_linear` of each of the layers that read x.

    Args:
        weights: of each layer its codes, scales and bias.

    Returns:
        float32 (..., N) of each.
    """
    layers = zip(weights[::3], weights[1::3], weights[2::3], strict=True)
    return tuple(rounded_linear(x, *layer) for layer in layers)


def rounded_rows(x: torch.Tensor) -> torch.Tensor:
    """x in integers of -127 to 127 times a scale for each 32 neighbours: the greatest magnitude / 127.

    Groups below 1e-30 are zero; one with a number that is not finite is NaN.

    Args:
        x: float32 (..., K), K a multiple of 32.
    """
    groups = x.unflatten(-1, (-1, ROUNDED_GROUP))
    greatest = groups.abs().amax(-1, keepdim=True)
    kept = greatest >= LEAST_ROUNDED
    inverse = torch.where(kept, 127 / greatest, 0)
    rounded = torch.round(torch.where(kept, groups, 0) * inverse) * (greatest / 127)
    return torch.where(kept, rounded, 0 * greatest).flatten(-2)


@cpu("linear_int4_input_gradient")
def linear_int4_input_gradient(
    dy: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """dy W, the gradient of :func:`linear_int4` by x: float32 (..., N) -> (..., K)."""
    return dy @ int4.dequantize_int4(codes, scales)


@cpu("linear_int4_bf16")
def linear_int4_bf16(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """:func:`linear_int4` of numbers rounded to bfloat16, x's and the weight's, and accumulated in float32."""
    return torch.nn.functional.linear(
        as_bf16(x), as_bf16(int4.dequantize_int4(codes, scales)), bias
    )


@cpu("linear_int4_bf16_input_gradient")
def linear_int4_bf16_input_gradient(
    dy: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """:func:`linear_int4_input_gradient` of numbers rounded to bfloat16, dy's and the weight's."""
    return as_bf16(dy) @ as_bf16(int4.dequantize_int4(codes, scales))


def as_bf16(x: torch.Tensor) -> torch.Tensor:
    """Numbers rounded to the nearest bfloat16, those in the middle to the even one; the dtype stays."""
    return x.bfloat16().to(x.dtype)


@cpu("linear_int8")
def linear_int8(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """x W^T (+ bias) as :func:`linear_int4`, of codes int8 (N, K) and scales float32 (N)."""
    return torch.nn.functional.linear(x, int4.dequantize_int8(codes, scales), bias)


@cpu("linear_int8_input_gradient")
def linear_int8_input_gradient(
    dy: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """dy W, the gradient of :func:`linear_int8` by x: float32 (..., N) -> (..., K)."""
    return dy @ int4.dequantize_int8(codes, scales)


@cpu("linear_int8_bf16")
def linear_int8_bf16(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """:func:`linear_int8` of numbers rounded to bfloat16, x's and the weight's, and accumulated in float32."""
    return torch.nn.functional.linear(
        as_bf16(x), as_bf16(int4.dequantize_int8(codes, scales)), bias
    )


@cpu("linear_int8_bf16_input_gradient")
def linear_int8_bf16_input_gradient(
    dy: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """:func:`linear_int8_input_gradient` of numbers rounded to bfloat16, dy's and the weight's."""
    return as_bf16(dy) @ as_bf16(int4.dequantize_int8(codes, scales))


@fake("linear_int4")
@fake("linear_int4_bf16")
@fake("rounded_linear")
@fake("linear_int8")
@fake("linear_int8_bf16")
def _(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], codes.shape[0]))


@fake("rounded_linears_2")
@fake("rounded_linears_3")
def _(x: torch.Tensor, *weights: Any) -> tuple[torch.Tensor, ...]:
    return tuple(x.new_empty((*x.shape[:-1], codes.shape[0])) for codes in weights[::3])


@fake("linear_int4_input_gradient")
@fake("linear_int4_bf16_input_gradient")
def _(dy: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return dy.new_empty((*dy.shape[:-1], 2 * codes.shape[1]))


@fake("linear_int8_input_gradient")
@fake("linear_int8_bf16_input_gradient")
def _(dy: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return dy.new_empty((*dy.shape[:-1], codes.shape[1]))


def _save_weight(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[1:3])


def _differentiate(name: str) -> None:
    gradient = getattr(torch.ops.zoexport, f"{name}_input_gradient")

    @differentiable(name, _save_weight)
    def _(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return gradient(dy, *ctx.saved_tensors), None, None, None


for _name in ("linear_int4", "linear_int4_bf16", "linear_int8", "linear_int8_bf16"):
    _differentiate(_name)


# --- products -------------------------------------------------------------------------------------


@cpu("matmul")
def matmul(a: torch.Tensor, b: torch.Tensor, transpose_a: bool, transpose_b: bool) -> torch.Tensor:
    """op(a) op(b), where op transposes the last two axes or does nothing.

    Args:
        a, b: float32 of the same rank, 2 to 4, with the same leading sizes.
        transpose_a: ``a`` is (..., depth, rows) and not (..., rows, depth).
        transpose_b: ``b`` is (..., columns, depth) and not (..., depth, columns).

    Returns:
        float32 (..., rows, columns).

    Raises:
        ValueError: other dtypes, or shapes that do not belong together.
    """
    if a.dtype != torch.float32 or b.dtype != torch.float32:
        raise ValueError(f"a is {a.dtype} and b is {b.dtype}; expected float32")
    if a.dim() != b.dim() or not 2 <= a.dim() <= 4:
        raise ValueError(f"a has rank {a.dim()} and b {b.dim()}; expected the same, 2 to 4")
    left, right = a.mT if transpose_a else a, b.mT if transpose_b else b
    if a.shape[:-2] != b.shape[:-2] or left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"a {tuple(a.shape)} and b {tuple(b.shape)} with transpose_a={transpose_a} and "
            f"transpose_b={transpose_b} do not multiply"
        )
    return torch.matmul(left, right)


@fake("matmul")
def _(a: torch.Tensor, b: torch.Tensor, transpose_a: bool, transpose_b: bool) -> torch.Tensor:
    rows, columns = a.shape[-1 if transpose_a else -2], b.shape[-2 if transpose_b else -1]
    return a.new_empty((*a.shape[:-2], rows, columns))


@cpu("add_matmul")
def add_matmul(
    c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, transpose_a: bool, transpose_b: bool
) -> torch.Tensor:
    """c + :func:`matmul` of a and b, as what adapters add to a layer.

    Args:
        c: float32 (..., rows, columns).

    Raises:
        ValueError: as there, or c is of another shape than the product.
    """
    product = matmul(a, b, transpose_a, transpose_b)
    if c.dtype != torch.float32 or c.shape != product.shape:
        raise ValueError(
            f"c is {c.dtype} {tuple(c.shape)}; expected float32 {tuple(product.shape)}"
        )
    return c + product


@fake("add_matmul")
def _(
    c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, transpose_a: bool, transpose_b: bool
) -> torch.Tensor:
    return c.new_empty(c.shape)
