"""quantize_weights: frozen linear weights and the token embedding in int4 or int8 (docs/formats.md).

Before::

    e = aten.embedding(W_e, tokens)
    y = aten.linear(x, W, bias)

After, for int4 weights (for int8 ones ``dequantize_int8``)::

    e = zoexport.embedding_int4(W_e.codes, W_e.scales, tokens)
    y = aten.linear(x, zoexport.dequantize_int4(W.codes, W.scales), bias)

A tied weight is quantized once and read by both. Left alone: adapters, norms, biases, learned positions (an
embedding that tokens do not index), and 2-D weights that enter other operators.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.fx import Node

from zoexport.core import int4
from zoexport.core.graph import Program, TrainingGraph, Value
from zoexport.ir.graphs import (
    add_input,
    aten,
    call,
    is_call,
    operand,
    placeholders,
    remove_unused_weights,
    zo,
)

_Quantize = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def quantize_weights(
    graph: TrainingGraph, *, weights: str, group_size: int, steps: bool = False
) -> TrainingGraph:
    """Quantize every program's frozen weights.

    Args:
        weights: ``int4`` or ``int8``.
        group_size, steps: of ``core.int4.quantize_int4``.

    Raises:
        ConfigError: the group size does not divide a layer's input size.
    """
    quantize = (
        partial(int4.quantize_int4, group_size=group_size, steps=steps)
        if weights == "int4"
        else int4.quantize_int8
    )
    used: set[str] = set()
    for program in graph.programs.values():
        for name, node in placeholders(program).items():
            if name in graph.weights.keys() - graph.unquantized and graph.weights[name].dim() == 2:
                _quantize_reads(graph, program, name, node, quantize)
        remove_unused_weights(program)
        used.update(value.name for value in program.weights())
    graph.weights = {name: tensor for name, tensor in graph.weights.items() if name in used}
    graph.packing = f"int4-symmetric-g{group_size}/1" if weights == "int4" else "int8-symmetric/1"
    return graph


def _quantize_reads(
    graph: TrainingGraph,
    program: Program,
    name: str,
    weight: Node,
    quantize: _Quantize,
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
    codes, scales = _quantized(graph, program, name, quantize)
    nodes = program.module.graph
    four_bits = codes.meta["val"].dtype == torch.uint8
    dequantize = zo.dequantize_int4.default if four_bits else zo.dequantize_int8.default
    for linear in linears:
        with nodes.inserting_before(linear):
            linear.replace_input_with(weight, call(nodes, dequantize, codes, scales))
    for embedding in embeddings:
        read = operand(embedding, 1)
        with nodes.inserting_before(embedding):
            if four_bits:
                rows = call(nodes, zo.embedding_int4.default, codes, scales, read)
            else:
                rows = embedding_int8(nodes, codes, scales, read)
        embedding.replace_all_uses_with(rows)
        nodes.erase_node(embedding)


def _quantized(
    graph: TrainingGraph,
    program: Program,
    name: str,
    quantize: _Quantize,
) -> tuple[Node, Node]:
    """Placeholders of a weight's codes and scales, quantizing it at the first call."""
    names = f"{name}.codes", f"{name}.scales"
    if names[0] not in graph.weights:
        pair = quantize(graph.weights[name].float())
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
