"""rotate_inputs: inputs with outliers are rotated before they are rounded to int8 (docs/int4.md).

Before::

    e = aten.embedding(W_e, tokens)
    y = aten.linear(x, W, bias)

After, for a ``W`` whose inputs have outliers (R a block Hadamard matrix, its own inverse)::

    e = zoexport.rotate_rows(aten.embedding(W_e R, tokens))
    y = aten.linear(zoexport.rotate_rows(x), W R, bias)

Which inputs have outliers is measured: the program runs once on tokens over the whole vocabulary. Left alone:
inputs that gain little, adapters (they read the row as it was), and weights that other operators read too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter, Node

from zoexport.core import hadamard
from zoexport.core.types import Program, TrainingGraph
from zoexport.ir.graphs import aten, call, is_call, operand, placeholders, shape_of, zo
from zoexport.ir.product_ops import ROUNDED_GROUP
from zoexport.ir.samples import sample_inputs

MINIMUM_GAIN = 2.0
"""Rounding errors must fall by this factor; a rotation costs a few percent of the product it serves."""


def rotate_inputs(graph: TrainingGraph, *, measured: str, weights: str) -> TrainingGraph:
    """Rotate in every program what gains from it in the program ``measured``, over ``weights`` of int4 or int8."""
    gains = rounding_gains(graph, graph.programs[measured], weights)
    chosen = [
        name
        for name, gain in gains.items()
        if gain >= MINIMUM_GAIN
        and all(_only_products_read(name, program) for program in graph.programs.values())
    ]
    for name in chosen:
        weight = graph.weights[name]
        graph.weights[name] = hadamard.rotate_rows(weight.float()).to(weight.dtype)
    return rotate_as(graph, chosen)


def rotate_as(graph: TrainingGraph, chosen: Collection[str]) -> TrainingGraph:
    """Rotate the inputs of those weights that are rotated already."""
    for program in graph.programs.values():
        _rotate(program, set(chosen))
    graph.rotated = sorted(chosen)
    return graph


def rounding_error(x: Tensor, weights: str) -> float:
    """The expected error of int8 rounding over the row, root mean square over the rows of ``x`` (..., K).

    One scale is that of 32 neighbours over int4 ``weights``, of a row over int8 ones.
    """
    if weights == "int4":
        step = x.unflatten(-1, (-1, ROUNDED_GROUP)).abs().amax(-1) / 127
    else:
        step = (x.amax(-1, keepdim=True).clamp(min=0) - x.amin(-1, keepdim=True).clamp(max=0)) / 255
    error = step.square().mean(-1) / 12
    power = x.square().mean(-1)
    return float((error / power.clamp(min=torch.finfo(torch.float32).tiny)).mean().sqrt())


def rotation_gain(x: Tensor, weights: str) -> float:
    """How many times smaller :func:`rounding_error` is once the rows of ``x`` are rotated."""
    before, after = (rounding_error(rows, weights) for rows in (x, hadamard.rotate_rows(x)))
    return before / max(after, torch.finfo(torch.float32).tiny)


def rounding_gains(graph: TrainingGraph, program: Program, weights: str) -> dict[str, float]:
    """How many times smaller rounding errors are on rotated inputs, for each weight of a linear layer."""
    sample = sample_inputs(graph, program)
    inputs = [
        graph.weights[value.name] if value.role == "weight" else sample[value.name]
        for value in program.inputs
    ]
    names = {node: name for name, node in placeholders(program).items()}
    return _Measurement(graph, program, names, weights).measure(inputs)


class _Measurement(Interpreter):
    """Runs a program and looks at the inputs of its linear layers on the way."""

    def __init__(
        self, graph: TrainingGraph, program: Program, names: dict[Node, str], rounding: str
    ) -> None:
        super().__init__(program.module)
        self.weights = graph.weights
        self.rounding = rounding
        self.names = names
        self.gains: dict[str, float] = {}

    def measure(self, inputs: list[Tensor]) -> dict[str, float]:
        with torch.no_grad():
            self.run(*inputs)
        return self.gains

    def run_node(self, n: Node) -> Any:
        if is_call(n, aten.linear):
            x, weight = operand(n), operand(n, 1)
            name = self.names.get(weight, "")
            if name in self.weights and hadamard.can_rotate(shape_of(weight)[-1]):
                self._look(name, self.env[x])
        return super().run_node(n)

    def _look(self, name: str, x: Tensor) -> None:
        gain = rotation_gain(x, self.rounding)
        self.gains[name] = min(gain, self.gains.get(name, gain))


def _only_products_read(name: str, program: Program) -> bool:
    """Whether only linear layers and the token embedding read a weight in ``program``."""
    nodes = placeholders(program)
    weight = nodes.get(name)
    return weight is None or all(
        (is_call(user, aten.linear) and user.args[1] is weight and user.args[0] is not weight)
        or (is_call(user, aten.embedding) and user.args[1] is nodes["tokens"])
        for user in weight.users
    )


def _rotate(program: Program, chosen: set[str]) -> None:
    nodes = program.module.graph
    names = {node: name for name, node in placeholders(program).items() if name in chosen}
    rotated: dict[Node, Node] = {}
    for node in list(nodes.nodes):
        if is_call(node, aten.linear) and node.args[1] in names:
            x = operand(node)
            if x not in rotated:
                with nodes.inserting_before(node):
                    rotated[x] = call(nodes, zo.rotate_rows.default, x)
            node.update_arg(0, rotated[x])
        elif is_call(node, aten.embedding) and node.args[0] in names:
            with nodes.inserting_after(node):
                restored = call(nodes, zo.rotate_rows.default, node)
            node.replace_all_uses_with(restored)
            restored.update_arg(0, node)
    program.module.recompile()
