"""save_products: for each backward program, a pair that computes no product twice.

A backward program computes its layer again (MeBP section 3, gradient checkpointing). Before::

    layer.0(hidden, ...) -> hidden
    layer.0.backward(hidden, ..., output_gradient.hidden) -> gradients

After, also::

    layer.0.saving(hidden, ...) -> hidden, saved.0, saved.1, ...
    layer.0.backward.from_saved(hidden, ..., output_gradient.hidden, saved.0, saved.1, ...) -> the same gradients

Which pair a session calls for a layer depends on the memory that it may take
(docs/architecture.md). Saved are the fewest bytes from which the gradients follow without a product
or attention of the forward pass: the minimum cut between these and the gradients, as in Jia et al.,
Megatron's selective recomputation and functorch's partitioner. Norms, activations and rotary
embeddings are computed again, so gradients are the same to the last bit.

Left alone: the output head, which keeps nothing; programs in which something else than float32 would have to be saved.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping

import networkx
import torch
from torch.fx import Node

from zoexport.core.graph import LayerGraph, Program, Value
from zoexport.ir.graphs import (
    add_input,
    aten,
    call,
    copy_program,
    is_call,
    is_own,
    outputs,
    placeholders,
    set_outputs,
)
from zoexport.ir.shapes import record_shapes
from zoexport.passes.differentiate import finish_backward, traced_backward, trained_inputs
from zoexport.passes.split_layers import HEAD

_PRODUCTS = (aten.linear, aten.matmul, aten.mm, aten.bmm, aten.addmm, aten.baddbmm)
_SIMPLE = (aten.add, aten.sub, aten.mul)
"""Results that are the same bits whether a row program stores them or computes them where they are read."""
_IN, _OUT, _SOURCE, _SINK = "in", "out", "source", "sink"


def save_products(graph: LayerGraph) -> LayerGraph:
    """Add the pairs, and name them in the stages."""
    wanted = trained_inputs(graph)
    wanted.pop(HEAD, None)
    for program in list(graph.programs.values()):
        if program.family not in wanted:
            continue
        pair = _pair(program, wanted[program.family])
        if pair is None:
            continue
        for made in pair:
            graph.programs[made.name] = made
        for stage in graph.stages:
            # Below the first trained layer, stages of the same family have no backward program.
            if stage.forward == program.family and stage.backward is not None:
                stage.saving, stage.from_saved = (made.family for made in pair)
    return graph


def _pair(program: Program, trainable: set[str]) -> tuple[Program, Program] | None:
    forward = copy_program(program, program.name)
    _with_all_parts(forward)
    given = set(outputs(forward).values())
    candidates = [
        node for node in forward.module.graph.nodes if _may_be_saved(node) and node not in given
    ]
    backward, computed = traced_backward(forward, trainable, candidates)
    backward.module.graph.eliminate_dead_code()
    alive = set(backward.module.graph.nodes)
    origin: dict[Node, Node] = {}
    for candidate, node in zip(candidates, computed, strict=True):
        if node in alive:
            origin.setdefault(node, candidate)
    cut = _cheapest_cut(backward, origin)
    if not cut:
        return None
    values = {
        node: Value(f"saved.{number}", "saved", "float32", tuple(node.meta["val"].shape))
        for number, node in enumerate(cut)
    }
    return (
        _saving(forward, [(value, origin[node]) for node, value in values.items()]),
        _from_saved(backward, values),
    )


def _with_all_parts(program: Program) -> None:
    """Read every result of a call that has several: gradients may need those that the forward pass does not."""
    nodes = program.module.graph
    for node in list(nodes.nodes):
        if _is_product(node) and isinstance(node.meta["val"], tuple | list):
            read = {user.args[1] for user in node.users}
            with nodes.inserting_after(node):
                for part in {*range(len(node.meta["val"]))} - read:
                    call(nodes, operator.getitem, node, part)


def _is_product(node: Node) -> bool:
    return is_call(node, *_PRODUCTS) or is_own(node)


def _may_be_saved(node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return False
    part = node.target is operator.getitem and _is_product(node.all_input_nodes[0])
    return part or _is_product(node) or is_call(node, *_SIMPLE)


def _cheapest_cut(backward: Program, origin: Mapping[Node, Node]) -> list[Node]:
    """The fewest bytes among ``origin`` from which gradients follow without forward products, if there are such."""
    inputs = placeholders(backward).items()
    later = {node for name, node in inputs if name.startswith("output_gradient.")}
    nodes = list(backward.module.graph.nodes)
    for node in nodes:
        if later.intersection(node.all_input_nodes):
            later.add(node)
    flow = networkx.DiGraph()
    flow.add_nodes_from((_SOURCE, _SINK))
    for place, node in enumerate(nodes):
        if node.op != "call_function" or node in later:
            continue
        if node in origin:
            # Among cuts of equal bytes, prefer the cut with the least left to compute.
            size = node.meta["val"].nbytes * len(nodes) - place
            flow.add_edge((node, _IN), (node, _OUT), capacity=size)
        else:
            flow.add_edge((node, _IN), (node, _OUT))  # of any capacity
        if _is_product(node):
            flow.add_edge(_SOURCE, (node, _IN))
        for user in node.users:
            flow.add_edge((node, _OUT), _SINK if user in later else (user, _IN))
    try:
        _, (before, _) = networkx.minimum_cut(flow, _SOURCE, _SINK)
    except networkx.NetworkXUnbounded:
        return []
    return [
        node
        for node in nodes
        if (node, _IN) in before and (node, _OUT) not in before and node in origin
    ]


def _saving(forward: Program, saved: list[tuple[Value, Node]]) -> Program:
    family = f"{forward.family}.saving"
    name = forward.name.replace(forward.family, family, 1)
    set_outputs(forward, [*zip(forward.outputs, outputs(forward).values(), strict=True), *saved])
    forward.module.graph.eliminate_dead_code()
    record_shapes(forward)
    return dataclasses.replace(forward, name=name, family=family)


def _from_saved(backward: Program, saved: Mapping[Node, Value]) -> Program:
    made = dataclasses.replace(backward, inputs=list(backward.inputs))
    for node, value in saved.items():
        node.replace_all_uses_with(add_input(made, value))
    made.family = f"{backward.family}.from_saved"
    made.name = backward.name.replace(backward.family, made.family, 1)
    finish_backward(made)
    return made
