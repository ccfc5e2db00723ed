"""Layouts: operators that only change the order or shape of elements, as strides over a tensor.

A row is the last dimension of a value. An operator that only moves, repeats or regroups whole rows
can be evaluated on the inputs of a computation instead of on its result
(:class:`RowMove`). Any view of a stored tensor can be read (:func:`strided`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from zoexport.ir.graphs import RESHAPES, arguments, aten, is_call, operand, shape_of

COPIES = (aten.clone, aten.contiguous, aten.alias, aten.detach, aten._to_copy, aten.to)
VIEWS = (
    aten.permute,
    aten.transpose,
    aten.t,
    aten.unsqueeze,
    aten.squeeze,
    aten.expand,
    aten.slice,
)
LAYOUTS = (*RESHAPES, *COPIES, *VIEWS)


def is_layout(node: object) -> bool:
    """Return whether a call only changes the order or shape of its operand's elements."""
    if not is_call(node, *LAYOUTS):
        return False
    if is_call(node, *COPIES):
        return bool(node.meta["val"].dtype == operand(node).meta["val"].dtype)
    return not is_call(node, aten.slice) or _range(node)[3] == 1


def _range(node: Node) -> tuple[int, int, int, int]:
    """Dimension, start, length and step of a slice."""
    given = arguments(node)[1:]
    absent: tuple[Any, ...] = (0, None, None, 1)
    dim, start, _, step = given + absent[len(given) :]
    rank, size = len(shape_of(node)), shape_of(operand(node))
    dim = dim % rank
    start = start or 0
    return dim, max(start + size[dim], 0) if start < 0 else start, shape_of(node)[dim], step


def place_of_part(node: Node) -> tuple[int, int, int, int]:
    """Dimension, start, end and step of a slice_scatter, counted from the front."""
    given = arguments(node)[2:]
    absent: tuple[Any, ...] = (0, None, None, 1)
    dim, start, end, step = given + absent[len(given) :]
    dim = dim % len(shape_of(node))
    begin, after, _ = slice(start, end).indices(shape_of(node)[dim])
    return dim, begin, after, step


@dataclasses.dataclass(frozen=True)
class RowMove:
    """A change of the leading dimensions alone: ``kind`` is permute, expand, view or narrow."""

    kind: str
    sizes: tuple[int, ...]

    def apply(self, value: torch.Tensor) -> torch.Tensor:
        """``value`` (lead..., width) with its rows moved.

        Raises:
            RuntimeError: strides cannot say it.
        """
        if self.kind == "permute":
            return value.permute(*self.sizes, value.dim() - 1)
        if self.kind == "expand":
            missing = len(self.sizes) + 1 - value.dim()
            value = value[(None,) * missing] if missing else value
            return value.expand(*self.sizes, value.shape[-1])
        if self.kind == "narrow":
            return value.narrow(*self.sizes)
        return value.view(*self.sizes, value.shape[-1])


def row_move(node: Node) -> RowMove | None:
    """Return the row move of a layout; None if the layout changes the rows themselves."""
    before, after = shape_of(operand(node)), shape_of(node)
    if is_call(node, *COPIES):
        return RowMove("view", after[:-1])
    if is_call(node, aten.permute, aten.transpose, aten.t):
        order = permutation(node)
        return RowMove("permute", order[:-1]) if order[-1] == len(order) - 1 else None
    if is_call(node, aten.slice):
        dim, start, length, _ = _range(node)
        return RowMove("narrow", (dim, start, length)) if dim < len(after) - 1 else None
    if not before or not after or before[-1] != after[-1]:
        return None
    kind = "expand" if is_call(node, aten.expand) else "view"
    return RowMove(kind, after[:-1])


def permutation(node: Node) -> tuple[int, ...]:
    """Return the order of dimensions of a permute, transpose or t."""
    rank = len(shape_of(node))
    order = list(range(rank))
    if is_call(node, aten.permute):
        return tuple(int(axis) % rank for axis in arguments(node)[1])
    first, second = (
        (0, 1) if is_call(node, aten.t) else (int(a) % rank for a in arguments(node)[1:3])
    )
    if rank > 1:
        order[first], order[second] = order[second], order[first]
    return tuple(order)


def strided(base: Sequence[int], layouts: Sequence[Node], moves: Sequence[RowMove]) -> torch.Tensor:
    """A tensor without values that has the strides and offset of a view of a contiguous tensor of shape ``base``.

    Args:
        layouts: applied first, in order. moves: applied then, in order.

    Raises:
        RuntimeError: strides cannot say it.
    """
    value = torch.empty(tuple(base), device="meta")
    for node in layouts:
        value = _viewed(value, node)
    for move in moves:
        value = move.apply(value)
    return value


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A stored value and how its rows are read: layouts, then moves."""

    node: Node
    layouts: tuple[Node, ...]
    moves: tuple[RowMove, ...]

    def view(self) -> torch.Tensor:
        """Return a tensor without values with the strides of the read."""
        return strided(shape_of(self.node), self.layouts, self.moves)


def _viewed(value: torch.Tensor, node: Node) -> torch.Tensor:
    if is_call(node, *COPIES):
        return value
    if is_call(node, aten.permute, aten.transpose, aten.t):
        return value.permute(permutation(node))
    if is_call(node, aten.expand):
        missing = len(shape_of(node)) - value.dim()
        return (value[(None,) * missing] if missing else value).expand(shape_of(node))
    if is_call(node, aten.slice):
        return value.narrow(*_range(node)[:3])
    return value.view(shape_of(node))


def resolved(node: Node) -> tuple[Node, list[Node]]:
    """The value below a chain of layouts that strides can say, and the chain, the one nearest to it first.

    Where strides cannot say the whole chain, the value is the last layout below which they can.
    """
    below: list[Node] = []
    while is_layout(node):
        below.append(node)
        node = operand(node)
    chain: list[Node] = []
    value = torch.empty(shape_of(node), device="meta")
    for layout in reversed(below):
        try:
            value = _viewed(value, layout)
            chain.append(layout)
        except RuntimeError:
            node, chain = operand(layout), [layout]
            value = _viewed(torch.empty(shape_of(node), device="meta"), layout)
    return node, chain


def holds_whole(node: Node) -> bool:
    """Return whether a value has all elements of its resolved base, in the same order."""
    base, layouts = resolved(node)
    view = strided(shape_of(base), layouts, ())
    return view.is_contiguous() and view.numel() == math.prod(shape_of(base))
