"""Matrix products, as operators of namespace ``zoexport``; ``ops`` imports this module.

These are torch's own results: a device adds up in another order (``runtime_ops/kernels/products.h``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zoexport.core import int4
from zoexport.core.routed import routed_product
from zoexport.ir.declare import declare, differentiable, like, operator

ROUNDED_GROUP = 32
"""Neighbours that :func:`rounded_rows` rounds by one scale."""
LEAST_ROUNDED = 1e-30
"""A group's greatest magnitude below which its reciprocal may not be finite."""

# --- linear layers over quantized weights ---------------------------------------------------------


def linear_shape(x: Tensor, codes: Tensor) -> Tensor:
    """Return an empty result of a linear layer of these codes."""
    return x.new_empty((*x.shape[:-1], codes.shape[0]))


def _int4_gradient(dy: Tensor, codes: Tensor) -> Tensor:
    return dy.new_empty((*dy.shape[:-1], 2 * codes.shape[1]))


def _int8_gradient(dy: Tensor, codes: Tensor) -> Tensor:
    return dy.new_empty((*dy.shape[:-1], codes.shape[1]))


@operator(linear_shape)
def linear_int4(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T (+ bias) with float32 activations and accumulation; differentiable in x alone.

    Args:
        x: float32 (..., K). codes, scales: see docs/formats.md. bias: float32 (N) or None.

    Returns:
        float32 (..., N).
    """
    return torch.nn.functional.linear(x, int4.dequantize_int4(codes, scales), bias)


@operator(linear_shape)
def rounded_linear(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """:func:`linear_int4` or, of codes int8, :func:`linear_int8` of x rounded to 8 bits (:func:`rounded_rows`)."""
    linear = linear_int8 if codes.dtype == torch.int8 else linear_int4
    return linear(rounded_rows(x), codes, scales, bias)


def rounded_linears(x: Tensor, *weights: Any) -> tuple[Tensor, ...]:
    """:func:`rounded_linear` of each of the layers that read x.

    Args:
        weights: of each layer its codes, scales and bias.

    Returns:
        float32 (..., N) of each.
    """
    layers = zip(weights[::3], weights[1::3], weights[2::3], strict=True)
    return tuple(rounded_linear(x, *layer) for layer in layers)


def _declare_linears(count: int) -> None:
    def shapes(x: Tensor, *weights: Any) -> tuple[Tensor, ...]:
        return tuple(linear_shape(x, codes) for codes in weights[::3])

    numbers = range(1, count + 1)
    weights = (f"Tensor codes_{i}, Tensor scales_{i}, Tensor? bias_{i}" for i in numbers)
    outputs = [f"out_{i}" for i in numbers]
    arguments = f"Tensor x, {', '.join(weights)}"
    declare(f"rounded_linears_{count}", arguments, outputs, rounded_linears, shapes)


for _count in (2, 3):
    _declare_linears(_count)


def rounded_rows(x: Tensor) -> Tensor:
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


@operator(_int4_gradient)
def linear_int4_input_gradient(dy: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """dy W, the gradient of :func:`linear_int4` by x: float32 (..., N) -> (..., K)."""
    return dy @ int4.dequantize_int4(codes, scales)


@operator(linear_shape)
def linear_int4_bf16(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """:func:`linear_int4` of numbers rounded to bfloat16, x's and the weight's, and accumulated in float32."""
    return torch.nn.functional.linear(
        as_bf16(x), as_bf16(int4.dequantize_int4(codes, scales)), bias
    )


@operator(_int4_gradient)
def linear_int4_bf16_input_gradient(dy: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """:func:`linear_int4_input_gradient` of numbers rounded to bfloat16, dy's and the weight's."""
    return as_bf16(dy) @ as_bf16(int4.dequantize_int4(codes, scales))


def as_bf16(x: Tensor) -> Tensor:
    """Numbers rounded to the nearest bfloat16, those in the middle to the even one; the dtype stays."""
    return x.bfloat16().to(x.dtype)


@operator(linear_shape)
def linear_int8(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T (+ bias) as :func:`linear_int4`, of codes int8 (N, K) and scales float32 (N)."""
    return torch.nn.functional.linear(x, int4.dequantize_int8(codes, scales), bias)


@operator(_int8_gradient)
def linear_int8_input_gradient(dy: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """dy W, the gradient of :func:`linear_int8` by x: float32 (..., N) -> (..., K)."""
    return dy @ int4.dequantize_int8(codes, scales)


@operator(linear_shape)
def linear_int8_bf16(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """:func:`linear_int8` of numbers rounded to bfloat16, x's and the weight's, and accumulated in float32."""
    return torch.nn.functional.linear(
        as_bf16(x), as_bf16(int4.dequantize_int8(codes, scales)), bias
    )


@operator(_int8_gradient)
def linear_int8_bf16_input_gradient(dy: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """:func:`linear_int8_input_gradient` of numbers rounded to bfloat16, dy's and the weight's."""
    return as_bf16(dy) @ as_bf16(int4.dequantize_int8(codes, scales))


def _save_weight(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:3])


def _differentiate(name: str) -> None:
    gradient = getattr(torch.ops.zoexport, f"{name}_input_gradient")

    @differentiable(name, _save_weight)
    def _(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        return gradient(dy, *ctx.saved_tensors), None, None, None


for _name in ("linear_int4", "linear_int4_bf16", "linear_int8", "linear_int8_bf16"):
    _differentiate(_name)


# --- experts --------------------------------------------------------------------------------------


def _routed_shape(x: Tensor, weight: Tensor, experts: Tensor, transposed: bool) -> Tensor:
    return x.new_empty((*experts.shape, weight.shape[2 if transposed else 1]))


def _routed_int4_shape(x: Tensor, codes: Tensor, experts: Tensor, transposed: bool) -> Tensor:
    return x.new_empty((*experts.shape, 2 * codes.shape[2] if transposed else codes.shape[1]))


def _routed_int8_shape(x: Tensor, codes: Tensor, experts: Tensor, transposed: bool) -> Tensor:
    return _routed_shape(x, codes, experts, transposed)


@operator(_routed_shape)
def routed_linear(x: Tensor, weight: Tensor, experts: Tensor, transposed: bool) -> Tensor:
    """x W^T of the expert that a router chose for each row, or x W; differentiable in x alone.

    The gradient by x is the operator itself, with the other value of ``transposed``.

    Args:
        x: float32 (tokens, k, K), or (tokens, 1, K) if all k experts of a token read the same row.
        weight: float32 (E, N, K). experts: int64 (tokens, k); a number outside [0, E) gives zeros.
        transposed: multiply with W; x is then (tokens, k or 1, N).

    Returns:
        float32 (tokens, k, N), or (tokens, k, K) if ``transposed``.
    """
    made = _routed_shape(x, weight, experts, transposed)
    return _routed(made, x, experts, transposed, lambda expert: weight[expert], len(weight))


@operator(_routed_int4_shape)
def routed_linear_int4(
    x: Tensor, codes: Tensor, scales: Tensor, experts: Tensor, transposed: bool
) -> Tensor:
    """:func:`routed_linear` of codes uint8 (E, N, K/2) and scales bfloat16 (E, N, K/G)."""

    def weight(expert: int) -> Tensor:
        return int4.dequantize_int4(codes[expert], scales[expert])

    made = _routed_int4_shape(x, codes, experts, transposed)
    return _routed(made, x, experts, transposed, weight, len(codes))


@operator(_routed_int8_shape)
def routed_linear_int8(
    x: Tensor, codes: Tensor, scales: Tensor, experts: Tensor, transposed: bool
) -> Tensor:
    """:func:`routed_linear` of codes int8 (E, N, K) and scales float32 (E, N)."""

    def weight(expert: int) -> Tensor:
        return int4.dequantize_int8(codes[expert], scales[expert])

    made = _routed_int8_shape(x, codes, experts, transposed)
    return _routed(made, x, experts, transposed, weight, len(codes))


def _routed(
    made: Tensor,
    x: Tensor,
    experts: Tensor,
    transposed: bool,
    weight: Callable[[int], Tensor],
    count: int,
) -> Tensor:
    def turned(expert: int) -> Tensor:
        return weight(expert) if transposed else weight(expert).T

    return routed_product(made, x, experts, turned, count)


def _save_routed(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, *tensors, ctx.transposed = inputs
    ctx.save_for_backward(*tensors)
    ctx.shared = x.shape[1] == 1


def _differentiate_routed(name: str) -> None:
    product = getattr(torch.ops.zoexport, name)

    @differentiable(name, _save_routed)
    def _(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx = product(dy, *ctx.saved_tensors, not ctx.transposed)
        dx = dx.sum(1, keepdim=True) if ctx.shared and dx.shape[1] > 1 else dx
        return dx, *([None] * (len(ctx.saved_tensors) + 1))


for _name in ("routed_linear", "routed_linear_int4", "routed_linear_int8"):
    _differentiate_routed(_name)


# --- products -------------------------------------------------------------------------------------


def _product(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    rows, columns = a.shape[-1 if transpose_a else -2], b.shape[-2 if transpose_b else -1]
    return a.new_empty((*a.shape[:-2], rows, columns))


@operator(_product)
def matmul(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
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


@operator(lambda c: like(c))
def add_matmul(c: Tensor, a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
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
