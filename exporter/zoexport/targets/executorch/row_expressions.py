"""Row expressions: what calls that treat each row alone compute, as the instructions of a row program."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from zoexport.ir.graphs import arguments, aten, is_call, shape_of
from zoexport.ir.row_ops import Op

Value = int
"""An operand of an instruction: a register, or a constant where negative."""

_UNARY = {
    aten.neg: Op.NEG,
    aten.exp: Op.EXP,
    aten.log: Op.LOG,
    aten.sqrt: Op.SQRT,
    aten.rsqrt: Op.RSQRT,
    aten.reciprocal: Op.RECIPROCAL,
    aten.sigmoid: Op.SIGMOID,
    aten.tanh: Op.TANH,
    aten.erf: Op.ERF,
    aten.abs: Op.ABS,
}
_BINARY = {
    aten.add: Op.ADD,
    aten.sub: Op.SUB,
    aten.mul: Op.MUL,
    aten.div: Op.DIV,
    aten.maximum: Op.MAX,
    aten.minimum: Op.MIN,
    aten.lt: Op.LT,
    aten.le: Op.LE,
    aten.gt: Op.GT,
    aten.ge: Op.GE,
    aten.eq: Op.EQ,
    aten.ne: Op.NE,
}
_REDUCTIONS = (aten.sum, aten.mean, aten.amax)
_SOFTMAX = (aten._softmax, aten.softmax)
_ROW_PARTS = (aten.slice, aten.cat, aten.slice_scatter)
_OTHERS = (
    aten.rsub,
    aten.pow,
    aten.silu,
    aten.gelu,
    aten.relu,
    aten.where,
    aten.clamp,
    aten.full,
    aten.full_like,
    aten.zeros_like,
)


def treats_rows_alone(node: object) -> bool:
    """Return whether a call computes each row from the same rows of its operands, in float32."""
    if not isinstance(node, Node) or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    if node.op != "call_function" or not _has_rows(node):
        return False
    if not all(_has_rows(arg) or is_call(arg, aten.scalar_tensor) for arg in node.all_input_nodes):
        return False
    if is_call(node, *_UNARY, *_BINARY):
        return not node.kwargs and not isinstance(arguments(node)[0], bool)
    if is_call(node, *_REDUCTIONS):
        return _over_rows(node) and bool(arguments(node)[2:3] == (True,))
    if is_call(node, *_SOFTMAX):
        return _is_last(arguments(node)[1], node)
    if is_call(node, *_ROW_PARTS):
        return _is_last(_axis(node), node) and _plain_step(node)
    if is_call(node, aten.pow):
        return (
            isinstance(arguments(node)[1], int | float) and _power(arguments(node)[1]) is not None
        )
    return is_call(node, *_OTHERS)


def _has_rows(node: Node) -> bool:
    value = node.meta.get("val")
    return (
        isinstance(value, torch.Tensor)
        and value.dim() > 0
        and value.numel() > 0
        and value.dtype in (torch.float32, torch.bool)
    )


def _is_last(axis: Any, node: Node) -> bool:
    return bool(axis in (-1, len(shape_of(node)) - 1))


def _over_rows(node: Node) -> bool:
    axes = arguments(node)[1]
    rank = len(shape_of(node.all_input_nodes[0]))
    return axes in ([-1], [rank - 1], -1, rank - 1)


def _axis(node: Node) -> Any:
    given = arguments(node)
    place = {aten.slice: 1, aten.cat: 1, aten.slice_scatter: 2}
    index = next(at for operator, at in place.items() if is_call(node, operator))
    return given[index] if len(given) > index else 0


def _plain_step(node: Node) -> bool:
    given = arguments(node)
    step = {aten.slice: 4, aten.slice_scatter: 5}
    return all(
        len(given) <= at or given[at] == 1
        for operator, at in step.items()
        if is_call(node, operator)
    )


def _power(exponent: float) -> float | None:
    """Return the exponent, where products, reciprocals and square roots express it."""
    return exponent if 2 * exponent == int(2 * exponent) and 0 < abs(exponent) <= 4 else None


class Emitter:
    """Writes the instructions of a call into a row program.

    Args:
        instruct: (op, width of the result, a, b, c) to the register of the result.
        operand: the register of a node's row, or a constant.
        constant: the operand of a number.
        assemble: (width, constant, parts as (offset, register)) to a register that holds the parts, later ones over
            earlier ones, and the constant elsewhere.
        width_of: the width of a value.
    """

    def __init__(
        self,
        instruct: Callable[..., Value],
        operand: Callable[[Node], Value],
        constant: Callable[[float], Value],
        assemble: Callable[[int, Value, list[tuple[int, Value]]], Value],
        width_of: Callable[[Value], int],
    ) -> None:
        self.instruct = instruct
        self.operand = operand
        self.constant = constant
        self.assemble = assemble
        self.width_of = width_of

    def emit(self, node: Node) -> Value:
        """The register that holds the row of ``node``."""
        given = arguments(node)
        width = shape_of(node)[-1]
        for table in (_UNARY, _BINARY):
            for operator, op in table.items():
                if is_call(node, operator):
                    count = 1 if table is _UNARY else 2
                    return self.instruct(op, width, *(self._value(arg) for arg in given[:count]))
        if is_call(node, *_REDUCTIONS):
            return self._reduced(node)
        if is_call(node, *_SOFTMAX):
            return self._softmax(given[0], width)
        if is_call(node, *_ROW_PARTS):
            return self._parts(node, width)
        return self._other(node, given, width)

    def _value(self, argument: Any) -> Value:
        if is_call(argument, aten.scalar_tensor):
            argument = arguments(argument)[0]
        return (
            self.operand(argument) if isinstance(argument, Node) else self.constant(float(argument))
        )

    def _whole(self, node: Node) -> Value:
        """The register of a row with all its elements: elsewhere one number may stand for equal ones."""
        row, width = self._value(node), shape_of(node)[-1]
        if row >= 0 and self.width_of(row) == width:
            return row
        return self.instruct(Op.FILL, width, row)

    def _reduced(self, node: Node) -> Value:
        row = self._whole(arguments(node)[0])
        if is_call(node, aten.amax):
            return self.instruct(Op.MAXIMUM, 1, row)
        total = self.instruct(Op.SUM, 1, row)
        if is_call(node, aten.sum):
            return total
        return self.instruct(Op.MUL, 1, total, self.constant(1.0 / self.width_of(row)))

    def _softmax(self, argument: Node, width: int) -> Value:
        row = self._whole(argument)
        shifted = self.instruct(Op.SUB, width, row, self.instruct(Op.MAXIMUM, 1, row))
        powers = self.instruct(Op.EXP, width, shifted)
        total = self.instruct(Op.SUM, 1, powers)
        return self.instruct(Op.MUL, width, powers, self.instruct(Op.RECIPROCAL, 1, total))

    def _parts(self, node: Node, width: int) -> Value:
        given = arguments(node)
        if is_call(node, aten.slice):
            row = self._whole(given[0])
            start = (given[2] if len(given) > 2 else None) or 0
            start = start + self.width_of(row) if start < 0 else start
            return self.instruct(Op.SLICE, width, row, 0, start)
        if is_call(node, aten.cat):
            parts, offset = [], 0
            for part in given[0]:
                if part.meta["val"].numel():
                    parts.append((offset, self._whole(part)))
                    offset += shape_of(part)[-1]
            return self.assemble(width, self.constant(0.0), parts)
        start = (given[3] if len(given) > 3 else None) or 0
        start = start + width if start < 0 else start
        below, part = self._value(given[0]), (start, self._whole(given[1]))
        if below < 0:
            return self.assemble(width, below, [part])
        return self.assemble(width, self.constant(0.0), [(0, self._whole(given[0])), part])

    def _other(self, node: Node, given: tuple[Any, ...], width: int) -> Value:
        if is_call(node, aten.rsub):
            return self.instruct(Op.SUB, width, self._value(given[1]), self._value(given[0]))
        if is_call(node, aten.pow):
            return self._raised(self._value(given[0]), given[1], width)
        if is_call(node, aten.silu):
            row = self._value(given[0])
            return self.instruct(Op.MUL, width, row, self.instruct(Op.SIGMOID, width, row))
        if is_call(node, aten.gelu):
            return self._gelu(self._value(given[0]), width, node.kwargs.get("approximate", "none"))
        if is_call(node, aten.relu):
            return self.instruct(Op.MAX, width, self._value(given[0]), self.constant(0.0))
        if is_call(node, aten.where):
            return self.instruct(Op.SELECT, width, *(self._value(arg) for arg in given))
        if is_call(node, aten.clamp):
            row = self._value(given[0])
            for op, bound in zip((Op.MAX, Op.MIN), given[1:], strict=False):
                row = row if bound is None else self.instruct(op, width, row, self._value(bound))
            return row
        return self.constant(float(given[1]) if is_call(node, aten.full, aten.full_like) else 0.0)

    def _raised(self, row: Value, exponent: float, width: int) -> Value:
        half = 2 * abs(exponent) % 2 == 1
        result: Value | None = self.instruct(Op.SQRT, width, row) if half else None
        for _ in range(int(abs(exponent))):
            result = row if result is None else self.instruct(Op.MUL, width, result, row)
        assert result is not None
        return result if exponent > 0 else self.instruct(Op.RECIPROCAL, width, result)

    def _gelu(self, row: Value, width: int, approximate: object) -> Value:
        if approximate == "tanh":
            cube = self._raised(row, 3, width)
            inner = self.instruct(
                Op.ADD, width, row, self.instruct(Op.MUL, width, cube, self.constant(0.044715))
            )
            scaled = self.instruct(Op.MUL, width, inner, self.constant(math.sqrt(2 / math.pi)))
            share = self.instruct(Op.TANH, width, scaled)
        else:
            scaled = self.instruct(Op.MUL, width, row, self.constant(math.sqrt(0.5)))
            share = self.instruct(Op.ERF, width, scaled)
        weight = self.instruct(Op.ADD, width, share, self.constant(1.0))
        half = self.instruct(Op.MUL, width, row, self.constant(0.5))
        return self.instruct(Op.MUL, width, half, weight)
