"""quantize_weights: frozen linear weights and the token embedding in int4 or int8 (docs/int4.md).

Before::

    e = aten.embedding(W_e, tokens)
    y = aten.linear(x, W, bias)

After, for int4 weights and int8 activations::

    e = zoexport.embedding_int4(W_e.codes, W_e.scales, tokens)
    y = zoexport.rounded_linear_int4(x, W.codes, W.scales, bias)

and with float activations, or int8 weights (``dequantize_int8``)::

    y = aten.linear(x, zoexport.dequantize_int4(W.codes, W.scales), bias)
    y = aten.linear(zoexport.fake_quantize_int8_rows(x), zoexport.dequantize_int8(W.codes, W.scales), bias)

A tied weight is quantized once and read by both. Left alone: adapters, norms, biases, learned positions (an
embedding that tokens do not index), and 2-D weights that enter other operators.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Node

from zoexport.core import int4
from zoexport.core.types import Program, TrainingGraph, Value
from zoexport.ir.graphs import (
    add_input,
    arguments,
    aten,
    call,
    is_call,
    operand,
    placeholders,
    remove_unused_weights,
    zo,
)


def quantize_weights(
    graph: TrainingGraph,
    *,
    weights: str,
    activations: str,
    group_size: int,
    known: Mapping[str, torch.Tensor] | None = None,
) -> TrainingGraph:
    """Quantize every program's frozen weights.

    Args:
        weights: ``int4`` or ``int8``. activations: ``fp32`` or ``int8`` (dynamic; a scale for 32 neighbours over int4
            weights, for a row over int8 ones).
        group_size: weights that share a scale, for int4.
        known: codes and scales of other programs over the same weights, which are taken as they are.

    Raises:
        ConfigError: the group size does not divide a layer's input size.
    """
    used: set[str] = set()
    for program in graph.programs.values():
        for name, node in placeholders(program).items():
            if name in graph.weights and graph.weights[name].dim() == 2:
                _quantize_reads(
                    graph, program, name, node, weights, activations, group_size, known or {}
                )
        remove_unused_weights(program)
        program.module.recompile()
        read = {value.name: value.name for value in program.weights()}
        for stage in graph.stages_of(program):
            stage.bind = {
                value.name: stage.bind.get(value.name, value.name)
                for value in program.inputs
                if value.role in ("weight", "table", "state")
            }
            read = stage.bind
        used.update(read.values())
    graph.weights = {name: tensor for name, tensor in graph.weights.items() if name in used}
    graph.packing = f"int4-symmetric-g{group_size}/1" if weights == "int4" else "int8-symmetric/1"
    return graph


def _quantize_reads(
    graph: TrainingGraph,
    program: Program,
    name: str,
    weight: Node,
    weights: str,
    activations: str,
    group_size: int,
    known: Mapping[str, torch.Tensor],
) -> None:
    tokens = placeholders(program).get("tokens")
    linears = [
        user for user in weight.users if is_call(user, aten.linear) and user.args[1] is weight
    ]
    embeddings = [
        user for user in weight.users if is_call(user, aten.embedding) and user.args[1] is tokens
    ]
    if not linears and not embeddings:
        return
    codes, scales = _quantized(graph, program, name, weights, group_size, known)
    nodes = program.module.graph
    dequantize = zo.dequantize_int4.default if weights == "int4" else zo.dequantize_int8.default
    for linear in linears:
        x, _, *rest = arguments(linear)
        with nodes.inserting_before(linear):
            if weights == "int4" and activations == "int8":
                bias = rest[0] if rest else None
                rounded = call(nodes, zo.rounded_linear_int4.default, x, codes, scales, bias)
                linear.replace_all_uses_with(rounded)
                nodes.erase_node(linear)
                continue
            linear.replace_input_with(weight, call(nodes, dequantize, codes, scales))
            if activations == "int8":
                linear.update_arg(0, call(nodes, zo.fake_quantize_int8_rows.default, x))
    for embedding in embeddings:
        read = operand(embedding, 1)
        with nodes.inserting_before(embedding):
            if weights == "int4":
                rows = call(nodes, zo.embedding_int4.default, codes, scales, read)
            else:
                rows = embedding_int8(nodes, codes, scales, read)
        embedding.replace_all_uses_with(rows)
        nodes.erase_node(embedding)


def _quantized(
    graph: TrainingGraph,
    program: Program,
    name: str,
    weights: str,
    group_size: int,
    known: Mapping[str, torch.Tensor],
) -> tuple[Node, Node]:
    """Placeholders of a weight's codes and scales, quantizing it at the first call."""
    names = f"{name}.codes", f"{name}.scales"
    if names[0] in known:
        graph.weights.update((part, known[part]) for part in names)
    elif names[0] not in graph.weights:
        tensor = graph.weights[name].float()
        pair = (
            int4.quantize_int4(tensor, group_size)
            if weights == "int4"
            else int4.quantize_int8(tensor)
        )
        graph.weights.update(zip(names, pair, strict=True))
    codes, scales = (
        add_input(
            program,
            Value(
                part,
                "weight",
                str(graph.weights[part].dtype).removeprefix("torch."),
                tuple(graph.weights[part].shape),
            ),
        )
        for part in names
    )
    return codes, scales


def embedding_int8(nodes: torch.fx.Graph, codes: Node, scales: Node, tokens: Node) -> Node:
    """Rows of an int8 table, each times its scale."""
    rows = call(nodes, aten.embedding.default, codes, tokens)
    values = call(nodes, aten.to.dtype, rows, torch.float32)
    column = call(nodes, aten.unsqueeze.default, scales, 1)
    return call(nodes, aten.mul.Tensor, values, call(nodes, aten.embedding.default, column, tokens))
