"""Programs in the form that the NPU takes: one size for everything, 32-bit indices, weights in floating point.

The HTP runs graphs of fixed shapes. So rows have max_length tokens, and a call has as many label entries as there can
be; a session fills up what a call leaves free. It has no 64-bit integers: tokens and label positions are cast where
they index something, and nowhere else, as the seed and the step are 64-bit numbers for zoexport's own operators. What
depends on weights alone is computed here, as QNN gathers from constants only.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.fx import Node

from zoexport.core.graph import Program, TrainingGraph
from zoexport.ir.graphs import (
    aten,
    call,
    constant_values,
    copy_program,
    is_call,
    operand,
    placeholders,
    remove_unused_weights,
    weight_input,
    zo,
)
from zoexport.ir.lengths import close_sizes
from zoexport.ir.rewrite import rewrite
from zoexport.targets.executorch.qnn.broadcasts import repeat_broadcasts
from zoexport.targets.executorch.qnn.norms import rms_norms
from zoexport.targets.executorch.qnn.parts import lacking_operators

_INDEX = {aten.embedding: 1, aten.index_select: 2}
"""The place of the indices among an operator's arguments."""
_LARGER = (aten.expand, aten.repeat)


def for_htp(graph: TrainingGraph, name: str) -> Program:
    """Return a copy of a program in this form; new weights are added to ``graph``."""
    program = copy_program(graph.programs[name], name)
    close_sizes(graph, program)
    _dequantize(graph, program)
    lacking_operators(program, graph.weights)
    rms_norms(graph, program)
    repeat_broadcasts(program)
    _index_with_32_bits(graph, program)
    _fold(program, graph.weights)
    return program


def _dequantize(graph: TrainingGraph, program: Program) -> None:
    """Weights that are read as codes and scales: read as the numbers that these stand for."""
    names = {node: name for name, node in placeholders(program).items()}

    def read(node: Node) -> Node | None:
        if is_call(node, zo.dequantize_int4, zo.dequantize_int8):
            return _values(graph, program, names, node)
        if is_call(node, zo.embedding_int4):
            table = _values(graph, program, names, node)
            return call(node.graph, aten.embedding.default, table, operand(node, 2))
        if operand(node).meta["val"].dtype != torch.int8:
            return None
        # Codes of int8, whose rows are cast and scaled next: integers that fp16 holds too.
        name = f"{names[operand(node)]}.float"
        codes = graph.weights.setdefault(name, graph.weights[names[operand(node)]].float())
        table = weight_input(program, name, codes)
        return call(node.graph, aten.embedding.default, table, *node.args[1:])

    # One rule for all, so that weights are inputs in the order in which they are read.
    readers = (zo.dequantize_int4, zo.dequantize_int8, zo.embedding_int4, aten.embedding)
    rewrite(program, [(readers, read)])


def _values(graph: TrainingGraph, program: Program, names: dict[Node, str], read: Node) -> Node:
    """Return the weight whose codes and scales a call reads."""
    codes, scales = (graph.weights[names[operand(read, place)]] for place in (0, 1))
    name = names[operand(read)].removesuffix(".codes")
    if name not in graph.weights:
        four_bits = is_call(read, zo.dequantize_int4, zo.embedding_int4)
        dequantize = zo.dequantize_int4 if four_bits else zo.dequantize_int8
        graph.weights[name] = dequantize(codes, scales)
    return weight_input(program, name, graph.weights[name])


def _index_with_32_bits(graph: TrainingGraph, program: Program) -> None:
    constants = {node: name for name, node in placeholders(program).items()}

    def narrow(node: Node, place: int) -> Node | None:
        indices = operand(node, place)
        if indices.meta["val"].dtype != torch.int64:
            return None
        name = constants.get(indices, "")
        if name in graph.weights:
            short = f"{name}.int32"
            graph.weights[short] = graph.weights[name].int()
            cast = weight_input(program, short, graph.weights[short])
        else:
            cast = call(node.graph, aten._to_copy.default, indices, dtype=torch.int32)
        given = [*node.args]
        given[place] = cast
        return call(node.graph, node.target, *given, **node.kwargs)

    rewrite(
        program,
        [((operator,), partial(narrow, place=place)) for operator, place in _INDEX.items()],
    )


def _fold(program: Program, weights: dict[str, Tensor]) -> None:
    """Compute what depends on weights alone, and is no larger than these."""
    known = constant_values(program, weights, _is_larger)
    for node, value in known.items():
        if node.op == "placeholder" or all(user in known for user in node.users):
            continue
        name = f"{program.name}.computed.{node.name}"
        weights[name] = value.contiguous()
        node.replace_all_uses_with(weight_input(program, name, weights[name]))
    remove_unused_weights(program)


def _is_larger(node: Node) -> bool:
    """Return whether a result is larger than its inputs, has no inputs, or is not one tensor."""
    several = not isinstance(node.meta["val"], Tensor)
    return several or not node.all_input_nodes or is_call(node, *_LARGER)
