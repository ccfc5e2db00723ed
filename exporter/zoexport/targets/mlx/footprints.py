"""What MLX holds at once of a program: an estimate from its graph, as MLX plans nothing beforehand.

A tensor lives from where it is computed to where it was last read, as MLX gives a buffer back then; views hold their
operand's. Inputs are copied in, weights too; those of a whole program are counted apart, as they are quantized later.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from zoexport.core.types import Footprint, Program
from zoexport.ir.graphs import (
    RESHAPES,
    aten,
    is_call,
    operand,
    output_node,
    placeholders,
    shape_of,
    zo,
)
from zoexport.targets.mlx.packing import GROUPS

_STRIDED = (aten.expand, aten.permute, aten.select, aten.slice, aten.t, aten.transpose)
"""Views whose elements do not lie one after another: reshaping one copies it."""
_VIEWS = (*_STRIDED, aten.alias, aten.clone, aten.detach, aten.squeeze, aten.unsqueeze)
_AHEAD = 10
"""Calls that MLX starts before an earlier one has ended, with room for their results: its MAX_ACTIVE_TASKS."""
_OWN = 1_000_000
"""Bytes that MLX itself takes; measured."""
_INT4 = (zo.linear_int4, zo.linear_int4_input_gradient, zo.embedding_int4)
_INT8 = (zo.linear_int8, zo.linear_int8_input_gradient)


def footprint(program: Program) -> Footprint:
    """Of a program with numbers for sizes."""
    nodes = list(program.module.graph.nodes)
    is_whole = not program.family
    named = placeholders(program)
    apart = {named[value.name] for value in program.weights() if is_whole}
    owners: dict[Node, Node] = {}
    for node in nodes:
        shares = is_call(node, *_VIEWS) or node.target is operator.getitem or _keeps_order(node)
        owners[node] = owners[operand(node)] if shares else node
    computed = [node for node in nodes if owners[node] is node]
    last = {node: place for place, node in enumerate(computed)}
    for node in nodes:
        # Read by a view, it is read as long as that is.
        place = last[owners[node]]
        for read in node.all_input_nodes:
            last[owners[read]] = max(last[owners[read]], place)
    for node in output_node(program.module).all_input_nodes:
        last[owners[node]] = len(computed)
    live = most = moved = 0
    ends: dict[int, int] = {}
    for place, node in enumerate(computed):
        moved += _bytes(node) + sum(_bytes(read) for read in node.all_input_nodes)
        held = 0 if node in apart else _bytes(node)
        live += held
        most = max(most, live + _within(node))
        end = last[node] + (_AHEAD if node.op == "call_function" else 0)
        ends[end] = ends.get(end, 0) + held
        live -= ends.pop(place, 0)
    return Footprint(_OWN + most, 0, moved, copies_weights=is_whole)


def _keeps_order(node: Node) -> bool:
    """Whether a reshape is a view too."""
    if not is_call(node, *RESHAPES):
        return False
    source = operand(node)
    while is_call(source, *_VIEWS) and not is_call(source, *_STRIDED):
        source = operand(source)
    return not is_call(source, *_STRIDED)


def _within(node: Node) -> int:
    """Bytes that a call's rule has beside its arguments and results."""
    if is_call(node, zo.label_gradient):
        return 2 * _bytes(operand(node))  # the softmax, and the gradient before it is weighted
    if is_call(node, *_INT4):
        is_lookup = is_call(node, zo.embedding_int4)
        scales = operand(node, 1 if is_lookup else 2)
        # The biases, which are as large; both as float32 where the whole weight is read.
        return _bytes(scales) + (0 if is_lookup else 8 * scales.meta["val"].numel())
    if is_call(node, *_INT8):
        rows, width = shape_of(operand(node, 1))
        return 8 * rows * (width // GROUPS[-1])
    return 0


def _bytes(node: Node) -> int:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    return sum(one.nbytes for one in values if isinstance(one, torch.Tensor))
