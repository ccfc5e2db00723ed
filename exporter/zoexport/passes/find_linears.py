"""find_linears: one form for every product with a frozen weight.

Before (Falcon and others write the product themselves)::

    t = aten.transpose(W, 0, 1)          # or aten.t, aten.permute, aten.numpy_T
    y = aten.matmul(x, t)                # or aten.mm

After::

    y = aten.linear(x, W)

Left alone: products of two computed values, and transposes that other operators read too.
"""

from __future__ import annotations

from torch.fx import Node

from zoexport.core.graph import Program, TrainingGraph
from zoexport.ir.graphs import (
    aten,
    call,
    is_call,
    keep_path,
    operand,
    placeholders,
    remove_unused_weights,
)


def find_linears(graph: TrainingGraph) -> TrainingGraph:
    """Apply the rewrite to every program."""
    for program in graph.programs.values():
        _rewrite(graph, program)
    return graph


def linear_weights(graph: TrainingGraph) -> set[str]:
    """Return the names of the frozen weights that each program which reads them multiplies with, before the rewrite."""
    found: set[str] = set()
    others: set[str] = set()
    for program in graph.programs.values():
        multiplied = set(map(_weight_of, program.module.graph.nodes))
        for name, weight in _weights(graph, program).items():
            if weight.users:
                (found if weight in multiplied else others).add(name)
    return found - others


def _rewrite(graph: TrainingGraph, program: Program) -> None:
    weights = set(_weights(graph, program).values())
    nodes = program.module.graph
    for product in list(nodes.nodes):
        weight = _weight_of(product)
        if is_call(product, aten.linear) or weight not in weights:
            continue
        with nodes.inserting_before(product):
            linear = call(nodes, aten.linear.default, operand(product), weight)
        keep_path(linear, product)
        product.replace_all_uses_with(linear)
        nodes.erase_node(product)
    remove_unused_weights(program)


def _weights(graph: TrainingGraph, program: Program) -> dict[str, Node]:
    """Return the inputs of a program that are frozen matrices, by name."""
    return {
        name: node
        for name, node in placeholders(program).items()
        if name in graph.weights and graph.weights[name].dim() == 2
    }


def _weight_of(product: Node) -> Node | None:
    """Return W of ``linear(x, W)``, or of a product of x and the transpose of a matrix W."""
    if is_call(product, aten.linear):
        return operand(product, 1)
    return _untransposed(product.args[1]) if is_call(product, aten.matmul, aten.mm) else None


def _untransposed(node: object) -> Node | None:
    if not is_call(node, aten.transpose, aten.t, aten.permute, aten.numpy_T):
        return None
    source = operand(node)
    return source if len(source.meta["val"].shape) == 2 else None
