"""Counts over programs: the multiplications and additions of their products."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch.fx import Node

from zoexport.core.graph import Program
from zoexport.ir.graphs import (
    INPUT_GRADIENTS,
    QUANTIZED_LINEARS,
    ROUTED_LINEARS,
    arguments,
    aten,
    is_call,
    operand,
    shape_of,
    zo,
)

_PRODUCTS = (
    aten.linear,
    aten.mm,
    aten.bmm,
    aten.matmul,
    zo.grid_linear_int4,
    zo.grid_linear_int8,
    *QUANTIZED_LINEARS,
    *INPUT_GRADIENTS,
    *ROUTED_LINEARS,
)
_ADDED_PRODUCTS = (aten.addmm, aten.baddbmm)


def seen_pairs(tokens: int, causal: bool, window: int) -> int:
    """Count the pairs of a query and a key of ``zoexport.attention`` for a row of ``tokens``."""
    if not causal:
        return tokens * tokens
    most = min(window or tokens, tokens)
    return most * (most + 1) // 2 + (tokens - most) * most


def attention_flops(
    q: Sequence[int], width: int, causal: bool, window: int, *, gradient: bool
) -> int:
    """Count FLOPs of ``zoexport.attention``, q (B, T, H, D), values of ``width``, or its gradient.

    The forward pass has two products per pair of tokens, over depth and width. The gradient
    recomputes scores and gradients of probabilities, and has one product for each of q, k and v.
    """
    batches, tokens, heads, depth = q
    each = 3 * depth + 2 * width if gradient else depth + width
    return 2 * batches * heads * seen_pairs(tokens, causal, window) * each


def product_flops(program: Program) -> int:
    """Count FLOPs of a program's products, two per multiply-add; other operators are negligible.

    Recorded shapes must be numbers.
    """
    return sum(_flops(node) for node in program.module.graph.nodes)


def _flops(node: Node) -> int:
    if is_call(node, *_PRODUCTS):
        first = operand(node)
    elif is_call(node, *_ADDED_PRODUCTS):
        first = operand(node, 1)
    elif is_call(node, zo.attention, zo.attention_gradient):
        q, _, v = (shape_of(operand(node, index)) for index in range(3))
        causal, window = arguments(node)[-2:]
        gradient = is_call(node, zo.attention_gradient)
        return attention_flops(q, v[-1], causal, window, gradient=gradient)
    else:
        return 0
    return 2 * math.prod(shape_of(node)) * shape_of(first)[-1]
