"""Noise as an input, for engines that cannot make it: what the session's own generator gives (docs/noise.md).

Before::

    B'     = zoexport.zo_update(B, g, learning_rate, seed, step)
    copies = zoexport.zo_perturb(B', eps, seed, step, q)

After, with z of the step before and of this one, each (q, *B)::

    B'     = B - (learning_rate / q) * (g[0] * previous_noise[0] + g[1] * previous_noise[1] + ...)
    copies = stack(B' + eps * noise, B' - eps * noise)        # of zo_perturb_signs: cat(B', B' + eps * noise)

Products with chosen weights (``zoexport.sparse_add_mm``) are given it as ``zoexport.sparse_add_mm_given``.

The operations and their order are those of the operators, each rounded by itself, so the bits are the same wherever an
engine rounds as IEEE 754 says. ``previous_noise`` is zero where nothing is pending. Programs that generate, in which
nothing is perturbed, take chosen weights as they are, and no noise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from zoexport.core.graph import Program, Slot, TrainingGraph, Value
from zoexport.ir.graphs import (
    add_input,
    arguments,
    aten,
    call,
    is_call,
    placeholders,
    zo,
)
from zoexport.ir.rewrite import rewrite

_OPERATORS = (
    zo.zo_update,
    zo.zo_update_signs,
    zo.zo_perturb,
    zo.zo_perturb_signs,
    zo.zo_perturb_one,
    zo.zo_update_half,
    zo.sparse_add_mm,
)
_OF_THE_GENERATOR = ("epsilon", "seed", "step", "query")


def take_noise(graph: TrainingGraph, program: Program) -> None:
    """Make the noise of a zeroth-order program its input, and remove what only the generator reads."""
    slots = {slot.tensor_id: slot for slot in graph.slots}
    rewrite(program, [(_OPERATORS, _Arithmetic(program, slots).of)])
    _remove_unread(program)


def without_noise(program: Program) -> None:
    """Take chosen weights as they are, where nothing is perturbed, and remove what only perturbations read."""
    rewrite(program, [((zo.sparse_add_mm,), _unperturbed)])
    _remove_unread(program)


def _unperturbed(node: Node) -> Node:
    y, x, values, places, span, *_, most = arguments(node)
    given = (y, x, values, places, span, None, None, most)
    return call(node.graph, zo.sparse_add_mm_given.default, *given)


def _remove_unread(program: Program) -> None:
    for name, node in placeholders(program).items():
        value = next(value for value in program.inputs if value.name == name)
        if value.role in _OF_THE_GENERATOR and not node.users:
            program.module.graph.erase_node(node)
            program.inputs.remove(value)


class _Arithmetic:
    """Writes the arithmetic of one operator at the graph's insertion point."""

    def __init__(self, program: Program, slots: dict[int, Slot]) -> None:
        self.program = program
        self.slots = slots

    def of(self, node: Node) -> Node:
        """Return the node in its place."""
        if is_call(node, zo.zo_update, zo.zo_update_signs):
            return self._update(*arguments(node))
        if is_call(node, zo.zo_perturb):
            return self._perturb(*arguments(node))
        if is_call(node, zo.zo_perturb_signs):
            return self._perturb_forward(*arguments(node))
        if is_call(node, zo.zo_update_half):
            master, *rest = arguments(node)
            wide = self._call(aten.to.dtype, master, torch.float32)
            return self._call(aten.to.dtype, self._update(wide, *rest), torch.float16)
        if is_call(node, zo.sparse_add_mm):
            return self._sparse_add_mm(*arguments(node))
        return self._perturb_one(*arguments(node))

    def _update(
        self, master: Node, gradients: Node, rate: Node, _seed: Node, _step: Node, tensor_id: int
    ) -> Node:
        queries = int(gradients.meta["val"].shape[0])
        noise = self._noise("previous_noise", tensor_id, queries)
        total = None
        for query in range(queries):
            gradient = self._call(aten.select.int, gradients, 0, query)
            direction = self._call(aten.select.int, noise, 0, query)
            move = self._call(aten.mul.Tensor, gradient, direction)
            total = move if total is None else self._call(aten.add.Tensor, total, move)
        scale = self._call(aten.div.Tensor, rate, queries)
        return self._call(aten.sub.Tensor, master, self._call(aten.mul.Tensor, scale, total))

    def _perturb(
        self, master: Node, eps: Node, _seed: Node, _step: Node, tensor_id: int, queries: int
    ) -> Node:
        move = self._call(aten.mul.Tensor, eps, self._noise("noise", tensor_id, queries))
        plus = self._call(aten.add.Tensor, master, move)
        minus = self._call(aten.sub.Tensor, master, move)
        pairs = self._call(aten.stack.default, [plus, minus], 1)
        shape = [2 * queries, *self.slots[tensor_id].shape]
        return self._call(aten.reshape.default, pairs, shape)

    def _perturb_forward(
        self, master: Node, eps: Node, _seed: Node, _step: Node, tensor_id: int, queries: int
    ) -> Node:
        move = self._call(aten.mul.Tensor, eps, self._noise("noise", tensor_id, queries))
        moved = self._call(aten.add.Tensor, master, move)
        unmoved = self._call(aten.reshape.default, master, [1, *self.slots[tensor_id].shape])
        return self._call(aten.cat.default, [unmoved, moved])

    def _perturb_one(
        self,
        master: Node,
        eps: Node,
        sign: Node,
        _seed: Node,
        _step: Node,
        _query: Node,
        tensor_id: int,
    ) -> Node:
        signed = self._call(aten.mul.Tensor, sign, eps)
        move = self._call(aten.mul.Tensor, signed, self._noise("noise", tensor_id, 1))
        return self._call(aten.add.Tensor, master, move)

    def _sparse_add_mm(self, *given: Any) -> Node:
        *tensors, epsilon, _seed, _step, tensor_id, queries, most = given
        noise = self._noise("noise", tensor_id, queries)
        return self._call(zo.sparse_add_mm_given.default, *tensors, epsilon, noise, most)

    def _noise(self, role: str, tensor_id: int, queries: int) -> Node:
        slot = self.slots[tensor_id]
        value = Value(f"{role}.{slot.name}", role, "float32", (queries, *slot.shape))
        known = placeholders(self.program).get(value.name)
        return add_input(self.program, value) if known is None else known

    def _call(self, operator: Any, *args: Any) -> Node:
        return call(self.program.module.graph, operator, *args)
