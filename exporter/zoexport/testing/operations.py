"""Rules for the operations of an ML Program (opset of iOS 18).

A rule takes the operands, with fp16 widened to fp32, and returns one or more tensors. The caller
rounds the result to the declared type: fp16 is rounded once after each operation, and sums of
products are accumulated in fp32. A new operation is a new line, and a new case in its test.

coremltools folds constants with its own code (``value_inference``), not used here. Version 9.0:

* it rounds within an operation: a sum, a norm, a product or an activation of fp16 differs from one rounded once;
* ``scatter_along_axis`` ignores ``mode`` and overwrites instead of adding;
* ``concat`` ignores ``interleave``, and ``cumsum`` with ``exclusive`` raises TypeError;
* ``gather_nd``, ``scatter``, ``scatter_nd`` and ``silu`` are missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812  (the name that PyTorch's own documentation gives it)

from zoexport.testing import moves
from zoexport.testing.operands import Operands, Rule
from zoexport.testing.values import BY_NAME

_Unary = Callable[[torch.Tensor], torch.Tensor]
_Binary = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_UNARY: Mapping[str, _Unary] = {
    "abs": torch.abs,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "floor": torch.floor,
    "logical_not": torch.logical_not,
    "relu": torch.relu,
    "round": torch.round,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "silu": F.silu,
    "sin": torch.sin,
    "softplus": F.softplus,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tanh": torch.tanh,
}
_BINARY: Mapping[str, _Binary] = {
    "add": torch.add,
    "equal": torch.eq,
    "floor_div": torch.floor_divide,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
    "less_equal": torch.le,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "mod": torch.remainder,
    "mul": torch.mul,
    "not_equal": torch.ne,
    "pow": torch.pow,
    "sub": torch.sub,
}
_GELU: Mapping[str, _Unary] = {
    "EXACT": F.gelu,
    "TANH_APPROXIMATION": lambda x: F.gelu(x, approximate="tanh"),
    "SIGMOID_APPROXIMATION": lambda x: x * torch.sigmoid(1.702 * x),
}


def _elementwise() -> Mapping[str, Rule]:
    def unary(compute: _Unary) -> Rule:
        return lambda given: compute(given.tensor("x"))

    def binary(compute: _Binary) -> Rule:
        return lambda given: compute(given.tensor("x"), given.tensor("y"))

    return {
        **{name: unary(compute) for name, compute in _UNARY.items()},
        **{name: binary(compute) for name, compute in _BINARY.items()},
        "cast": _cast,
        "clip": lambda given: given.tensor("x").clamp(given.number("alpha"), given.number("beta")),
        "constexpr_blockwise_shift_scale": _dequantized,
        "elu": lambda given: F.elu(given.tensor("x"), given.number("alpha")),
        "gelu": lambda given: _GELU[given.text("mode")](given.tensor("x")),
        "inverse": lambda given: 1 / (given.tensor("x") + given.number("epsilon")),
        "leaky_relu": lambda given: F.leaky_relu(given.tensor("x"), given.number("alpha")),
        "log": lambda given: torch.log(given.tensor("x") + given.number("epsilon")),
        "real_div": _real_div,
        "rsqrt": lambda given: torch.rsqrt(given.tensor("x") + given.number("epsilon")),
        "select": lambda given: torch.where(
            given.tensor("cond"), given.tensor("a"), given.tensor("b")
        ),
    }


def _over_axes() -> Mapping[str, Rule]:
    return {
        "cumsum": _cumsum,
        "layer_norm": _layer_norm,
        "reduce_argmax": lambda given: given.tensor("x").argmax(
            given.integer("axis"), given.flag("keep_dims")
        ),
        "reduce_log_sum_exp": _reduction(torch.logsumexp),
        "reduce_max": _reduction(torch.amax),
        "reduce_mean": _reduction(torch.mean),
        "reduce_min": _reduction(torch.amin),
        "reduce_sum": _reduction(torch.sum),
        "reduce_sum_square": _reduction(lambda x, axes, keep: x.square().sum(axes, keep)),
        "softmax": lambda given: given.tensor("x").softmax(given.integer("axis")),
    }


def _products() -> Mapping[str, Rule]:
    return {
        "linear": lambda given: F.linear(
            given.tensor("x"), given.tensor("weight"), given.optional("bias")
        ),
        "matmul": _matmul,
        "scaled_dot_product_attention": _attention,
    }


def _cast(given: Operands) -> torch.Tensor:
    """Cast; float to integer truncates towards zero, to bool tests for nonzero."""
    return given.tensor("x").to(BY_NAME[given.text("dtype")].torch_dtype)


def _dequantized(given: Operands) -> torch.Tensor:
    """Return ``scale * (data - offset)``, with a scale and an offset per block of ``data``."""
    data, scale = given.tensor("data"), given.tensor("scale")
    blocks: list[int] = []
    for size, count in zip(data.shape, scale.shape, strict=True):
        blocks += (count, size // count)
    one_each = [size for count in scale.shape for size in (count, 1)]
    result = data.to(torch.float32, copy=True).reshape(blocks)
    offset = given.optional("offset")
    if offset is not None:
        result -= offset.float().reshape(one_each)
    result *= scale.float().reshape(one_each)
    return result.reshape(data.shape)


def _real_div(given: Operands) -> torch.Tensor:
    """Divide; the quotient of two integers is truncated towards zero."""
    x, y = given.tensor("x"), given.tensor("y")
    integers = not x.is_floating_point() and not y.is_floating_point()
    return torch.div(x, y, rounding_mode="trunc") if integers else torch.div(x, y)


def _reduction(compute: Callable[[torch.Tensor, list[int], bool], torch.Tensor]) -> Rule:
    def rule(given: Operands) -> torch.Tensor:
        x, axes = given.tensor("x"), given.optional_integers("axes")
        return compute(x, [*range(x.dim())] if axes is None else axes, given.flag("keep_dims"))

    return rule


def _cumsum(given: Operands) -> torch.Tensor:
    """Cumulative sum; ``exclusive``: without the element itself; ``reverse``: from the end."""
    x, axis = given.tensor("x"), given.integer("axis")
    turned = x.flip(axis) if given.flag("reverse") else x
    total = turned.cumsum(axis, dtype=x.dtype)
    if given.flag("exclusive"):
        total = total - turned
    return total.flip(axis) if given.flag("reverse") else total


def _layer_norm(given: Operands) -> torch.Tensor:
    x, axes = given.tensor("x"), given.optional_integers("axes")
    over = [*range(x.dim())] if axes is None else [axis % x.dim() for axis in axes]
    centred = x - x.mean(over, keepdim=True)
    variance = centred.square().mean(over, keepdim=True)
    normal = centred * torch.rsqrt(variance + given.number("epsilon"))
    # gamma and beta have the sizes of the normalized axes only.
    sizes = [size if axis in over else 1 for axis, size in enumerate(x.shape)]
    gamma, beta = given.optional("gamma"), given.optional("beta")
    if gamma is not None:
        normal = normal * gamma.reshape(sizes)
    return normal if beta is None else normal + beta.reshape(sizes)


def _matmul(given: Operands) -> torch.Tensor:
    x, y = given.tensor("x"), given.tensor("y")
    left = x.transpose(-1, -2) if given.flag("transpose_x") else x
    return torch.matmul(left, y.transpose(-1, -2) if given.flag("transpose_y") else y)


def _attention(given: Operands) -> torch.Tensor:
    query, key = given.tensor("query"), given.tensor("key")
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    mask = given.optional("attn_mask")
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1) @ given.tensor("value")


#: Rules by operation, without ``const``: a constant is read, not computed.
RULES: Mapping[str, Rule] = {**_elementwise(), **_over_axes(), **_products(), **moves.RULES}
