"""Products, quantized weights and labels in MLX (see ``operators``)."""

from __future__ import annotations

import operator
from typing import Any

import mlx.core as mx

from zoexport.ir.graphs import aten, zo
from zoexport.targets.mlx import axes, grid, operators
from zoexport.targets.mlx.packing import Packed, matmul
from zoexport.targets.rules import Rule

_PART = 256
_CHOSEN = 1024
"""Chosen weights whose products are held at a time."""


def products() -> dict[Any, Rule]:
    """Matrix products of numbers."""
    return {
        aten.addmm: lambda bias, a, b, beta=1, alpha=1: beta * bias + alpha * (a @ b),
        aten.baddbmm: lambda bias, a, b, beta=1, alpha=1: beta * bias + alpha * (a @ b),
        aten.bmm: mx.matmul,
        aten.matmul: mx.matmul,
        aten.mm: matmul,
        aten.scaled_dot_product_attention: _attention,
        zo.sparse_add_mm_given: _sparse_add_mm,
    }


def of_packed() -> dict[Any, Rule]:
    """Operators that read a weight as codes and scales: an argument may be :class:`Packed`."""
    return {
        aten.embedding: _embedding,
        aten.linear: _linear,
        zo.dequantize_int4: lambda weight, _scales: weight,
        zo.dequantize_int8: lambda weight, _scales: weight,
        zo.embedding_int4: lambda weight, _scales, indices: weight.rows(indices),
        zo.linear_int4: lambda x, weight, _scales, bias: _linear(x, weight, bias),
        zo.linear_int4_input_gradient: _input_gradient,
        zo.linear_int8: lambda x, weight, _scales, bias: _linear(x, weight, bias),
        zo.linear_int8_input_gradient: _input_gradient,
    }


def labels() -> dict[Any, Rule]:
    """The log-probabilities of labels, and the gradient that the loss gives the logits."""
    return {zo.label_logprobs: _label_logprobs, zo.label_gradient: _label_gradient}


def rules() -> dict[Any, Rule]:
    """Every operator whose arguments are arrays and numbers."""
    return {
        **operators.elementwise(),
        **operators.shapes(),
        **axes.reductions(),
        **axes.indexing(),
        **products(),
        **labels(),
        **grid.grids(),
        operator.getitem: operator.getitem,
    }


def _embedding(table: mx.array | Packed, indices: mx.array, *_: Any) -> mx.array:
    """Rows of a table; of packed ones their codes, which the program scales itself."""
    if isinstance(table, Packed):
        return table.integers(indices)
    return table[indices]


def _linear(x: mx.array, weight: mx.array | Packed, bias: mx.array | None = None) -> mx.array:
    made = weight.product(x, transpose=True) if isinstance(weight, Packed) else x @ weight.T
    return made if bias is None else made + bias


def _input_gradient(dy: mx.array, weight: Packed, _scales: Any) -> mx.array:
    return weight.product(dy, transpose=False)


def _sparse_add_mm(
    y: mx.array,
    x: mx.array,
    values: mx.array,
    places: mx.array,
    span: mx.array,
    epsilon: mx.array | None,
    noise: mx.array | None,
    most: int,
) -> mx.array:
    """Implement ``ir.sparse_ops``; layers with fewer than ``most`` sparse weights add zeros."""
    copies, width = 1 if noise is None else 2 * noise.shape[0], x.shape[-1]
    rows = mx.reshape(x, (copies, -1, width))
    total = mx.reshape(y, (copies, -1, y.shape[-1]))
    for first in range(0, most, _CHOSEN):
        index = span[0] + mx.arange(first, min(first + _CHOSEN, most))
        inside = index < span[1]
        index = mx.minimum(index, values.shape[0] - 1)
        place = mx.where(inside, places[index], 0)
        value = mx.where(inside, values[index].astype(mx.float32), 0)
        if epsilon is not None and noise is not None:
            move = mx.where(inside, epsilon * noise[:, index], 0)
            value = mx.stack([value + move, value - move], axis=1)
        terms = rows[..., place % width] * mx.reshape(value, (copies, 1, -1))
        total = total.at[..., place // width].add(terms)
    return mx.reshape(total, y.shape)


def _attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    mask: mx.array | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> mx.array:
    """MLX shares key-value heads by itself, so ``enable_gqa`` says nothing new."""
    if dropout:
        raise NotImplementedError("dropout while training")
    queries, keys = q.shape[-2], k.shape[-2]
    seen: Any = mask
    if is_causal:
        # MLX aligns causal masks at the last query and key, torch at the first ones.
        seen = "causal" if queries == keys else mx.tri(queries, keys, dtype=mx.bool_)
    return mx.fast.scaled_dot_product_attention(
        q,
        k,
        v,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        mask=seen,
    )


def _label_logprobs(logits: mx.array, tokens: mx.array) -> tuple[mx.array, mx.array]:
    """Return log-probabilities and argmax hits (C, M) for logits (C, M, V) and tokens (M)."""
    return _scores(logits, tokens, _in_parts(mx.logsumexp, logits))


def _scores(logits: mx.array, tokens: mx.array, scale: mx.array) -> tuple[mx.array, mx.array]:
    """Return the same for logits (..., M, V), with ``scale`` their logsumexp (..., M)."""
    index = mx.broadcast_to(tokens[:, None], (*logits.shape[:-1], 1))
    chosen = mx.take_along_axis(logits, index, axis=-1)[..., 0]
    hit = mx.argmax(logits, axis=-1).astype(tokens.dtype) == tokens
    return chosen - scale, hit.astype(mx.float32)


def _label_gradient(
    logits: mx.array, tokens: mx.array, weights: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """logits (M, V) -> the results of :func:`_label_logprobs` (M), and weight * (onehot - softmax) (M, V)."""
    scale = _in_parts(mx.logsumexp, logits)
    is_label = mx.arange(logits.shape[-1], dtype=tokens.dtype)[None] == tokens[:, None]
    others = mx.where(is_label, 0, mx.exp(logits - scale[:, None]))
    # 1 - softmax would lose the digits of a label that is all but certain.
    of_label = weights * _in_parts(mx.sum, others)
    gradient = mx.where(is_label, of_label[:, None], others * -weights[:, None])
    return *_scores(logits, tokens, scale), gradient


def _in_parts(reduce: Rule, x: mx.array) -> mx.array:
    """Return a reduction of the last axis, of those of :data:`_PART` elements.

    MLX's CPU takes element after element, so that a sum of a vocabulary of positive numbers loses 1e-5 of it.
    """
    whole = x.shape[-1] // _PART * _PART
    if whole == 0:
        return reduce(x, -1)
    parts = reduce(mx.reshape(x[..., :whole], (*x.shape[:-1], -1, _PART)), -1)
    if whole < x.shape[-1]:
        rest = reduce(x[..., whole:], -1, keepdims=True)
        parts = mx.concatenate([parts, rest], axis=-1)
    return reduce(parts, -1)
