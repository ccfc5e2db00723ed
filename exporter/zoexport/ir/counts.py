"""Counts over programs: the multiplications and additions of their products."""

from __future__ import annotations

import math

from torch.fx import Node

from zoexport.core.types import Program
from zoexport.ir.graphs import aten, is_call, operand, shape_of, zo

_PRODUCTS = (
    aten.linear,
    aten.mm,
    aten.bmm,
    aten.matmul,
    zo.grid_linear_int4,
    zo.grid_linear_int8,
    zo.linear_int4,
    zo.linear_int8,
    zo.linear_int4_input_gradient,
    zo.linear_int8_input_gradient,
)
_ADDED_PRODUCTS = (aten.addmm, aten.baddbmm)


def product_flops(program: Program) -> int:
    """Floating-point operations of a program's products, two for each multiply-add; all else is small beside them.

    Recorded shapes are numbers.
    """
    return sum(_flops(node) for node in program.module.graph.nodes)


def _flops(node: Node) -> int:
    if is_call(node, *_PRODUCTS):
        first = operand(node)
    elif is_call(node, *_ADDED_PRODUCTS):
        first = operand(node, 1)
    else:
        return 0
    return 2 * math.prod(shape_of(node)) * shape_of(first)[-1]
