"""Programs in the form that the NPU takes: one size for everything, 32-bit indices, weights in floating point.

The HTP runs graphs of fixed shapes. So rows have seq_len tokens, and a call has as many label entries as there can be;
a session fills up what a call leaves free. It has no 64-bit integers: tokens and label positions are cast where they
index something, and nowhere else, as the seed and the step are 64-bit numbers for zoexport's own operators. What
depends on weights alone is computed here, as QNN gathers from constants only.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node

from zoexport.core.types import Program, TrainingGraph
from zoexport.ir.graphs import (
    arguments,
    aten,
    call,
    copy_program,
    is_call,
    operand,
    placeholders,
    remove_unused_weights,
    weight_input,
    zo,
)
from zoexport.ir.lengths import close_sizes
from zoexport.targets.qnn.broadcasts import repeat_broadcasts
from zoexport.targets.qnn.norms import rms_norms
from zoexport.targets.qnn.parts import lacking_operators

_INDEX = {aten.embedding: 1, aten.index_select: 2}
"""The place of the indices among an operator's arguments."""
_LARGER = (aten.expand, aten.repeat)
"""Not computed beforehand: their results take more room than what they are made of."""


def for_htp(graph: TrainingGraph, name: str) -> Program:
    """A copy of a program in this form; weights that it needs anew are added to ``graph``."""
    program = copy_program(graph.programs[name], name)
    close_sizes(graph, program)
    _dequantize(graph, program)
    lacking_operators(program, graph.weights)
    rms_norms(graph, program)
    repeat_broadcasts(program)
    _index_with_32_bits(graph, program)
    _fold(program, graph.weights)
    program.module.recompile()
    return program


def _dequantize(graph: TrainingGraph, program: Program) -> None:
    """Weights that are read as codes and scales: read as the numbers that these stand for."""
    names = {node: name for name, node in placeholders(program).items()}
    for node in list(program.module.graph.nodes):
        if is_call(node, zo.dequantize_int4, zo.dequantize_int8):
            node.replace_all_uses_with(_values(graph, program, names, node, arguments(node)[:2]))
        elif is_call(node, zo.embedding_int4):
            codes, scales, tokens = arguments(node)
            table = _values(graph, program, names, node, (codes, scales))
            with program.module.graph.inserting_before(node):
                rows = call(program.module.graph, aten.embedding.default, table, tokens)
            node.replace_all_uses_with(rows)
        elif is_call(node, aten.embedding) and operand(node).meta["val"].dtype == torch.int8:
            # Codes of int8, whose rows are cast and scaled next: integers that fp16 holds too.
            name = names[operand(node)]
            graph.weights.setdefault(f"{name}.float", graph.weights[name].float())
            node.update_arg(
                0, weight_input(program, f"{name}.float", graph.weights[f"{name}.float"])
            )
            node.meta["val"] = node.meta["val"].float()


def _values(
    graph: TrainingGraph,
    program: Program,
    names: dict[Node, str],
    read: Node,
    stored: tuple[Node, ...],
) -> Node:
    codes, scales = (graph.weights[names[node]] for node in stored)
    name = names[stored[0]].removesuffix(".codes")
    if name not in graph.weights:
        four_bits = is_call(read, zo.dequantize_int4, zo.embedding_int4)
        dequantize = zo.dequantize_int4 if four_bits else zo.dequantize_int8
        graph.weights[name] = dequantize(codes, scales)
    return weight_input(program, name, graph.weights[name])


def _index_with_32_bits(graph: TrainingGraph, program: Program) -> None:
    nodes = program.module.graph
    constants = {node: name for name, node in placeholders(program).items()}
    for node in list(nodes.nodes):
        for operator, place in _INDEX.items():
            if not is_call(node, operator):
                continue
            indices = operand(node, place)
            if indices.meta["val"].dtype != torch.int64:
                continue
            with nodes.inserting_before(node):
                name = constants.get(indices, "")
                if name in graph.weights:
                    short = f"{name}.int32"
                    graph.weights[short] = graph.weights[name].int()
                    narrow = weight_input(program, short, graph.weights[short])
                else:
                    narrow = call(nodes, aten._to_copy.default, indices, dtype=torch.int32)
            node.update_arg(place, narrow)


def _fold(program: Program, weights: dict[str, Tensor]) -> None:
    """Compute what depends on weights alone, and is no larger than these."""
    nodes = program.module.graph
    known = {node: weights[name] for name, node in placeholders(program).items() if name in weights}
    for node in list(nodes.nodes):
        alone = node.op == "call_function" and node.all_input_nodes
        if not alone or is_call(node, *_LARGER) or not known.keys() >= {*node.all_input_nodes}:
            continue
        given = torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: known[arg])
        value = node.target(*given[0], **given[1])
        if isinstance(value, Tensor):
            known[node] = value
    for node, value in known.items():
        if node.op == "placeholder" or all(user in known for user in node.users):
            continue
        name = f"{program.name}.computed.{node.name}"
        weights[name] = value.contiguous()
        node.replace_all_uses_with(weight_input(program, name, weights[name]))
    remove_unused_weights(program)
