"""Whole programs in the form that the NPU takes: one size for everything, 32-bit indices, weights in floating point.

The HTP runs graphs of fixed shapes. So rows have seq_len tokens, and a call has as many label entries as there can be;
a session fills up what a call leaves free. It has no 64-bit integers: tokens and label positions are cast where they
index something, and nowhere else, as the seed and the step are 64-bit numbers for zoexport's own operators.
"""

from __future__ import annotations

import dataclasses

import torch
from torch.fx import Node

from zoexport.core.types import Program, TrainingGraph, Value
from zoexport.ir.graphs import (
    add_input,
    arguments,
    aten,
    call,
    copy_program,
    is_call,
    operand,
    placeholders,
    remove_unused_weights,
    zo,
)
from zoexport.ir.lengths import set_length
from zoexport.ir.shapes import record_shapes
from zoexport.targets.executorch.htp_norms import rms_norms

_INDEX = {aten.embedding: 1, aten.index_select: 2}
"""The place of the indices among an operator's arguments."""


def for_htp(graph: TrainingGraph, name: str) -> Program:
    """A copy of a program in this form; weights that it needs anew are added to ``graph``."""
    program = copy_program(graph.programs[name], name)
    if graph.length != graph.seq_len:
        set_length(program, graph.length, graph.seq_len)
    program.inputs = [_fixed(value) for value in program.inputs]
    program.outputs = [_fixed(value) for value in program.outputs]
    record_shapes(program)
    _dequantize(graph, program)
    rms_norms(graph, program)
    _index_with_32_bits(graph, program)
    remove_unused_weights(program)
    program.module.recompile()
    return program


def _fixed(value: Value) -> Value:
    return dataclasses.replace(value, shape=value.sizes())


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
            node.update_arg(0, _weight(graph, program, f"{name}.float"))
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
    return _weight(graph, program, name)


def _weight(graph: TrainingGraph, program: Program, name: str) -> Node:
    """The placeholder of one of the graph's weights, added where the program has not read it so far."""
    known = placeholders(program).get(name)
    if known is not None:
        return known
    tensor = graph.weights[name]
    dtype = str(tensor.dtype).removeprefix("torch.")
    return add_input(program, Value(name, "weight", dtype, tuple(tensor.shape)))


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
                    narrow = _weight(graph, program, short)
                else:
                    narrow = call(nodes, aten._to_copy.default, indices, dtype=torch.int32)
            node.update_arg(place, narrow)
