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
        for name, weight in placeholders(program).items():
            if name not in graph.weights or graph.weights[name].dim() != 2 or not weight.users:
                continue
            multiplied = any(
                is_call(product, aten.matmul, aten.mm) and product.args[1] is user
                for user in weight.users
                if _untransposed(user) is weight
                for product in user.users
            ) or any(is_call(user, aten.linear) and user.args[1] is weight for user in weight.users)
            (found if multiplied else others).add(name)
    return found - others


def _rewrite(graph: TrainingGraph, program: Program) -> None:
    weights = {
        node
        for name, node in placeholders(program).items()
        if name in graph.weights and graph.weights[name].dim() == 2
    }
    nodes = program.module.graph
    for product in list(nodes.nodes):
        if not is_call(product, aten.matmul, aten.mm):
            continue
        x, transposed = product.args
        weight = _untransposed(transposed)
        if weight not in weights:
            continue
        with nodes.inserting_before(product):
            linear = call(nodes, aten.linear.default, x, weight)
        keep_path(linear, product)
        product.replace_all_uses_with(linear)
        nodes.erase_node(product)
    remove_unused_weights(program)


def _untransposed(node: object) -> Node | None:
    if not is_call(node, aten.transpose, aten.t, aten.permute, aten.numpy_T):
        return None
    source = operand(node)
    return source if len(source.meta["val"].shape) == 2 else None
