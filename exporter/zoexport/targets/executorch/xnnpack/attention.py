"""flatten_attention: scores stay in three dimensions, of which a target need not know two at once.

Before, for g query heads on each of n key-value heads (``group_queries``), rows of s tokens::

    a = aten.reshape(aten.matmul(q, kT), [b, n*g, s, s])         # q (b, n, g*s, d)
    p = aten.softmax(a * scale + mask, -1)                        # mask (1, 1, s, s), a constant
    o = aten.matmul(aten.reshape(p, [b, n, g*s, s]), v)

After, with the mask repeated for the g heads of a group::

    a = aten.bmm(aten.reshape(q, [b*n, g*s, d]), aten.reshape(kT, [b*n, d, s]))
    p = aten.softmax(a * scale + mask', -1)                       # mask' (1, g*s, s)
    o = aten.reshape(aten.bmm(p, aten.reshape(v, [b*n, s, d])), [b, n, g*s, d])

XNNPACK's reshapes can leave one size open, so that with scores of (b, n, s, s) a sequence of any length would end the
delegate in every layer. Left alone: attention with anything but such computations between its two products.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.fx import Graph, Node

from zoexport.core.types import Program, TrainingGraph
from zoexport.ir.graphs import (
    RESHAPES,
    aten,
    call,
    is_call,
    operand,
    placeholders,
    shape_of,
    weight_input,
)
from zoexport.ir.lengths import follows

_EACH_ALONE = (aten.to, aten._to_copy, aten.clone, aten.contiguous, aten.tanh, aten.neg)
_PAIRS = (aten.add, aten.sub, aten.mul, aten.div)
_SOFTMAX = (aten.softmax, aten._softmax)


def flatten_attention(graph: TrainingGraph, program: Program) -> bool:
    """Rewrite every attention of a program; whether none is left as it was."""
    nodes = program.module.graph
    length = graph.length
    done = True
    for product in list(nodes.nodes):
        if is_call(product, aten.matmul) and _is_scores(product, length):
            done = _Attention(graph, program, product).flatten() and done
    nodes.eliminate_dead_code()
    program.module.recompile()
    return done


def _is_scores(node: Node, length: int) -> bool:
    shape = shape_of(node)
    return len(shape) == 4 and follows(shape[2], length) and follows(shape[3], length)


@dataclasses.dataclass
class _Attention:
    """The computation from one product of queries and keys to the products with values."""

    graph: TrainingGraph
    program: Program
    scores: Node

    def __post_init__(self) -> None:
        self.nodes: Graph = self.program.module.graph
        self.length = self.graph.length
        self.flat: dict[Node, Node] = {}
        self.results: dict[Node, Node] = {}

    def flatten(self) -> bool:
        """Rewrite it; False, and nothing that is read has changed, where it cannot be."""
        left, right = operand(self.scores), operand(self.scores, 1)
        if shape_of(left)[:2] != shape_of(right)[:2]:
            return False
        with self.nodes.inserting_before(self.scores):
            self.flat[self.scores] = call(
                self.nodes, aten.bmm.default, self._merged(left), self._merged(right)
            )
        waiting = list(self.scores.users)
        while waiting:
            node = waiting.pop(0)
            if node in self.flat or node in self.results:
                continue
            with self.nodes.inserting_before(node):
                flat = self._flattened(node)
            if flat is None:
                return False
            if _is_scores(node, self.length):
                self.flat[node] = flat
                waiting += node.users
            else:
                self.results[node] = flat
        for node, result in self.results.items():
            node.replace_all_uses_with(result)
        return True

    def _merged(self, node: Node) -> Node:
        """(b, n, x, y) as (b*n, x, y)."""
        batch, heads, *matrix = shape_of(node)
        return call(self.nodes, aten.reshape.default, node, [batch * heads, *matrix])

    def _flattened(self, node: Node) -> Node | None:
        if not is_call(node, aten.matmul, *RESHAPES, *_EACH_ALONE, *_PAIRS, *_SOFTMAX):
            return None
        if is_call(node, aten.matmul):
            return self._product(node)
        if not _is_scores(node, self.length):
            return None
        if is_call(node, *RESHAPES):
            # Another grouping of the heads: the same in three dimensions.
            (source, *_) = node.all_input_nodes
            return self.flat[source]
        if is_call(node, *_SOFTMAX):
            if node.args[1] not in (-1, 3):
                return None
            return self._again(node, (self.flat[node.all_input_nodes[0]], -1, *node.args[2:]))
        arguments = [
            self._operand(node, arg) if isinstance(arg, Node) else arg for arg in node.args
        ]
        return None if None in arguments[:2] else self._again(node, tuple(arguments))

    def _again(self, node: Node, arguments: tuple[Any, ...]) -> Node:
        return call(self.nodes, node.target, *arguments, **node.kwargs)

    def _product(self, node: Node) -> Node | None:
        """The product of probabilities and values, (b, n, x, d)."""
        left, right = operand(node), operand(node, 1)
        if left not in self.flat or right in self.flat:
            return None
        batch, heads, width, _ = shape_of(right)
        flat = self.flat[left]
        if (batch * heads, width) != (shape_of(flat)[0], shape_of(flat)[2]):
            return None
        product = call(self.nodes, aten.bmm.default, flat, self._merged(right))
        return call(self.nodes, aten.reshape.default, product, list(shape_of(node)))

    def _operand(self, reader: Node, operand: Node) -> Node | None:
        """An operand beside scores of ``reader``'s shape: scores themselves, or a constant mask or bias."""
        if operand in self.flat:
            return self.flat[operand]
        names = {node: name for name, node in placeholders(self.program).items()}
        name = names.get(operand)
        if name not in self.graph.weights or len(shape_of(operand)) > 4:
            return None
        assert name is not None
        batch, heads, _, _ = shape_of(reader)
        groups, height, _ = shape_of(self.flat[self.scores])
        size = height // self.length
        constant = self.graph.weights[name]
        constant = constant.reshape([1] * (4 - constant.dim()) + list(constant.shape))
        if constant.shape[:2] == (1, 1):
            many = constant.expand(1, size, self.length, self.length)
        else:
            full = constant.expand(batch, heads, self.length, self.length)
            many = full.reshape(groups, size, self.length, self.length)
        if size == 1:
            return self._constant(f"{name}.{many.shape[0]}", many[:, 0])
        stored = self._constant(f"{name}.{many.shape[0]}x{size}", many)
        flat = [many.shape[0], height, self.length]
        return call(self.nodes, aten.reshape.default, stored, flat)

    def _constant(self, name: str, tensor: torch.Tensor) -> Node:
        stored = self.graph.weights.setdefault(name, tensor.contiguous())
        return weight_input(self.program, name, stored)
