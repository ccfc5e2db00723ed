"""choose_rows_early: what only label positions need of the last layer is computed for them alone.

Before, with C copies, M label positions and values of (rows, seq, width)::

    h = x + aten.linear(a, W_o)                                     # a: attention's result, x: the residual stream
    y = h + aten.linear(aten.silu(aten.linear(norm(h), W_g)), W_d)
    c = aten.index_select(aten.reshape(y, [C, -1, width]), 1, label_positions)

After::

    x', a' = the chosen rows of x and a                             # (C, M, width)
    h = x' + aten.linear(a', W_o)
    c = h + aten.linear(aten.silu(aten.linear(norm(h), W_g)), W_d)

A choice moves before a computation that treats each row alone, if nothing else reads its result. Left alone: attention,
which mixes rows, and everything that a later attention reads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from zoexport.core.graph import Program, TrainingGraph
from zoexport.ir.graphs import (
    RESHAPES,
    arguments,
    aten,
    call,
    is_call,
    operand,
    placeholders,
    shape_of,
)

_COPIES = (aten.to, aten._to_copy, aten.clone, aten.contiguous)
_NORMS = (aten.layer_norm, aten.rms_norm)


def choose_rows_early(graph: TrainingGraph) -> TrainingGraph:
    """Apply the rewrite to every program."""
    for program in graph.programs.values():
        nodes = program.module.graph
        for choice in list(placeholders(program)["label_positions"].users):
            if is_call(choice, aten.index_select) and is_call(operand(choice), *RESHAPES):
                _Choice(program, choice).move()
        nodes.eliminate_dead_code()
    return graph


class _Choice:
    """One choice of rows, and what is known of values by their shape."""

    def __init__(self, program: Program, choice: Node) -> None:
        self.nodes: Graph = program.module.graph
        self.choice = choice
        self.flat = operand(choice)
        """All rows of a copy along one dimension."""
        self.by_copy = shape_of(self.flat)[:2]
        self.by_row = shape_of(operand(self.flat))[:2]
        self.chosen: dict[Node, Node] = {}

    def move(self) -> None:
        """Rebuild what can follow the choice, and choose from what stays before it."""
        late = {self.choice, self.flat}
        for node in reversed(self.nodes.nodes):
            if node not in late and late.issuperset(node.users) and self._each_row_alone(node):
                late.add(node)
        late -= {self.choice, self.flat}
        for node in list(self.nodes.nodes):
            if node in late:
                with self.nodes.inserting_before(node):
                    self.chosen[node] = self._again(node)
        if late:
            self.choice.replace_all_uses_with(self._rows(operand(self.flat)))

    def _has_rows(self, value: object) -> bool:
        return isinstance(value, Node) and self._shape(value)[:2] in (self.by_copy, self.by_row)

    @staticmethod
    def _shape(node: Node) -> tuple[int, ...]:
        """The shape of a value of three dimensions; empty of others."""
        value = node.meta.get("val")
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        return shape if len(shape) == 3 else ()

    def _each_row_alone(self, node: Node) -> bool:
        """Return whether each row of the result depends on the same row of the operands alone."""
        if node.op != "call_function" or not node.users or not self._has_rows(node):
            return False
        first, *others = arguments(node)
        if is_call(node, *RESHAPES):
            return self._has_rows(first) and self._shape(first)[-1] == shape_of(node)[-1]
        if is_call(node, aten.bmm):
            return self._has_rows(first) and self._is_matrix_by_copy(others[0])
        if is_call(node, aten.linear, aten.matmul):
            return self._has_rows(first) and all(
                other is None or len(shape_of(other)) <= 2 for other in others
            )
        if is_call(node, aten.mean):
            return self._has_rows(first) and others in ([[-1], True], [[2], True])
        if is_call(node, *_NORMS):
            return self._has_rows(first) and list(others[0]) == [shape_of(node)[-1]]
        if is_call(node, *_COPIES) or torch.Tag.pointwise in getattr(node.target, "tags", ()):
            return all(
                self._has_rows(value) or set(shape_of(value)[:-1]) <= {1}
                for value in node.all_input_nodes
            )
        return False

    def _is_matrix_by_copy(self, node: Node) -> bool:
        """Return the right side of an adapter's product: a matrix for each copy."""
        return shape_of(node)[0] == self.by_copy[0] and not self._has_rows(node)

    def _again(self, node: Node) -> Node:
        if is_call(node, *RESHAPES):  # of rows to rows by copy, or back
            return self._rows(operand(node))
        mapped = [
            self._rows(value) if self._has_rows(value) else value for value in arguments(node)
        ]
        return call(self.nodes, node.target, *mapped, **node.kwargs)

    def _rows(self, value: Any) -> Node:
        """Return the chosen rows of a value: (copies, M, width)."""
        if value not in self.chosen:
            with self.nodes.inserting_before(self._after(value)):
                flat = call(
                    self.nodes, aten.reshape.default, value, [*self.by_copy, shape_of(value)[-1]]
                )
                self.chosen[value] = call(
                    self.nodes, aten.index_select.default, flat, 1, arguments(self.choice)[2]
                )
        return self.chosen[value]

    def _after(self, value: Node) -> Node:
        """Return the first node that can read ``value``."""
        following = value.next
        while following.op == "placeholder":
            following = following.next
        return following
