"""Products, table lookups and labels in MIL (see ``elementwise``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from zoexport.ir.graphs import aten, zo
from zoexport.targets.coreml.values import FP32, cast, constant, together
from zoexport.targets.coreml.weights import Packed
from zoexport.targets.rules import Rule

READ_PACKED = (
    *(zo.dequantize_int4, zo.dequantize_int8, zo.embedding_int4),
    *(zo.linear_int4, zo.linear_int4_input_gradient),
    *(zo.linear_int8, zo.linear_int8_input_gradient),
)
"""Operators that read codes with their scales."""


def products(kind: Any) -> dict[Any, Rule]:
    """Products, which compute in ``kind``, fp32 or fp16; a weight may be :class:`Packed`."""

    def narrow(x: Any) -> Var:
        return x.var() if isinstance(x, Packed) else cast(x, kind)

    def matmul(a: Any, b: Any) -> Var:
        return mb.matmul(x=narrow(a), y=narrow(b))

    def linear(x: Var, weight: Any, bias: Var | None = None) -> Var:
        left, right = narrow(x), narrow(weight)
        if not isinstance(weight, Packed) and right.val is None:
            made = mb.matmul(x=left, y=right, transpose_y=True)
            return made if bias is None else mb.add(x=made, y=narrow(bias))
        # Without one, coremltools stores zeros for each weight.
        added = _zeros(right.shape[0], kind) if bias is None else narrow(bias)
        return mb.linear(x=left, weight=right, bias=added)

    def plus(bias: Var, a: Var, b: Var, beta: float = 1, alpha: float = 1) -> Var:
        made = matmul(a, b)
        made = made if alpha == 1 else mb.mul(x=made, y=_number(alpha, made))
        scaled = narrow(bias) if beta == 1 else mb.mul(x=narrow(bias), y=_number(beta, made))
        return mb.add(x=made, y=scaled)

    def embedding(table: Any, indices: Var, *_: Any) -> Var:
        weight = narrow(table)
        return mb.gather(x=weight, indices=indices, axis=0, validate_indices=False)

    def ignoring_scales(rule: Rule) -> Rule:
        return lambda x, weight, _scales, *rest: rule(x, weight, *rest)

    return {
        aten.addmm: plus,
        aten.baddbmm: plus,
        aten.bmm: matmul,
        aten.embedding: embedding,
        aten.linear: linear,
        aten.matmul: matmul,
        aten.mm: matmul,
        zo.dequantize_int4: lambda weight, _scales: weight,
        zo.dequantize_int8: lambda weight, _scales: weight,
        zo.embedding_int4: lambda weight, _scales, indices: embedding(weight, indices),
        zo.linear_int4: ignoring_scales(linear),
        zo.linear_int4_input_gradient: ignoring_scales(matmul),
        zo.linear_int8: ignoring_scales(linear),
        zo.linear_int8_input_gradient: ignoring_scales(matmul),
    }


def _zeros(count: int, kind: Any) -> Var:
    return constant(torch.zeros(count), kind, shared=f"zeros.{count}")


def _number(value: float, like: Var) -> Any:
    return together(like, value)[1]


def label_logprobs(logits: Var, tokens: Var) -> tuple[Var, Var]:
    """logits (..., M, V), tokens (M) -> log-probabilities and whether the label is the argmax, (..., M) fp32.

    By the sum of exponentials and not the logarithm of a softmax, which fp16 would round to nothing.
    """
    wide = cast(logits, FP32)
    total = mb.reduce_log_sum_exp(x=wide, axes=[-1], keep_dims=False)
    index = mb.expand_dims(x=tokens, axes=[1])
    if wide.rank == 3:
        index = mb.tile(x=mb.expand_dims(x=index, axes=[0]), reps=[wide.shape[0], 1, 1])
    chosen = mb.gather_along_axis(x=wide, indices=index, axis=-1, validate_indices=False)
    best = mb.reduce_argmax(x=wide, axis=-1, keep_dims=False)
    hit = mb.equal(x=cast(best, types.int32), y=tokens)
    return mb.sub(x=mb.squeeze(x=chosen, axes=[-1]), y=total), cast(hit, FP32)


def label_gradient(logits: Var, tokens: Var, weights: Var) -> tuple[Var, Var, Var]:
    """logits (M, V) -> the results of :func:`label_logprobs` (M), and weight * (onehot - softmax) (M, V), fp32."""
    logprobs, hit = label_logprobs(logits, tokens)
    softmax = mb.softmax(x=cast(logits, FP32), axis=-1)
    places = mb.const(val=np.arange(logits.shape[-1], dtype=np.int32)[None])
    is_label = mb.equal(x=places, y=mb.expand_dims(x=tokens, axes=[1]))
    difference = mb.sub(x=cast(is_label, FP32), y=softmax)
    return logprobs, hit, mb.mul(x=difference, y=mb.expand_dims(x=weights, axes=[1]))
