"""Liveness: what a program holds at once where an engine frees a tensor after its last reader, and plans nothing.

Views hold their operand's memory. Inputs count, weights too; those of a whole program are counted apart, as they are
quantized after its sizes are known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch.fx import Node

from zoexport.core.graph import Program
from zoexport.core.target import Footprint
from zoexport.ir.graphs import RESHAPES, aten, is_call, operand, output_node, placeholders

_STRIDED = (aten.expand, aten.permute, aten.select, aten.slice, aten.t, aten.transpose)
"""Views whose elements do not lie one after another: reshaping one copies it."""
_VIEWS = (*_STRIDED, aten.alias, aten.clone, aten.detach, aten.squeeze, aten.unsqueeze)


def live_footprint(
    program: Program, *, ahead: int = 0, within: Callable[[Node], int] = lambda _: 0
) -> Footprint:
    """Return the footprint of a program whose sizes are numbers.

    Args:
        program: its nodes run in order.
        ahead: calls that start, with memory for their results, before an earlier call has ended.
        within: scratch memory of a call in bytes, in addition to its arguments and results.
    """
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
        # A value that a view reads lives as long as the view.
        place = last[owners[node]]
        for read in node.all_input_nodes:
            last[owners[read]] = max(last[owners[read]], place)
    for node in output_node(program.module).all_input_nodes:
        last[owners[node]] = len(computed)
    live = most = moved = 0
    ends: dict[int, int] = {}
    for place, node in enumerate(computed):
        moved += tensor_bytes(node) + sum(tensor_bytes(read) for read in node.all_input_nodes)
        held = 0 if node in apart else tensor_bytes(node)
        live += held
        most = max(most, live + within(node))
        end = last[node] + (ahead if node.op == "call_function" else 0)
        ends[end] = ends.get(end, 0) + held
        live -= ends.pop(place, 0)
    return Footprint(most, 0, moved, copies_weights=is_whole)


def _keeps_order(node: Node) -> bool:
    """Return whether a reshape is a view."""
    if not is_call(node, *RESHAPES):
        return False
    source = operand(node)
    while is_call(source, *_VIEWS) and not is_call(source, *_STRIDED):
        source = operand(source)
    return not is_call(source, *_STRIDED)


def tensor_bytes(node: Node) -> int:
    """Return the bytes of a node's result, or of all of them."""
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    return sum(one.nbytes for one in values if isinstance(one, torch.Tensor))
