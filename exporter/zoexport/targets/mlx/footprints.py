"""What MLX holds at once of a program: an estimate from its graph, as MLX plans nothing beforehand.

A tensor lives from where it is computed to where it was last read, as MLX gives a buffer back then; views hold their
operand's. Weights and other inputs are copied in on machines without shared pages, so they count.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from zoexport.core.types import Footprint, Program
from zoexport.ir.graphs import RESHAPES, aten, is_call, operand, output_node

_VIEWS = (
    *RESHAPES,
    *(aten.alias, aten.clone, aten.detach, aten.expand, aten.permute, aten.select, aten.slice),
    *(aten.squeeze, aten.t, aten.transpose, aten.unsqueeze),
)


def footprint(program: Program) -> Footprint:
    """Of a program with numbers for sizes."""
    nodes = list(program.module.graph.nodes)
    owners: dict[Node, Node] = {}
    for node in nodes:
        shares = is_call(node, *_VIEWS) or node.target is operator.getitem
        owners[node] = owners[operand(node)] if shares else node
    last = {
        owners[read]: place for place, node in enumerate(nodes) for read in node.all_input_nodes
    }
    returned = {owners[node] for node in output_node(program.module).all_input_nodes}
    live = most = moved = 0
    ends: dict[int, list[Node]] = {}
    for place, node in enumerate(nodes):
        if owners[node] is node:
            moved += _bytes(node) + sum(_bytes(read) for read in node.all_input_nodes)
            live += _bytes(node)
            most = max(most, live)
            if node not in returned:
                ends.setdefault(last.get(node, place), []).append(node)
        live -= sum(_bytes(ended) for ended in ends.pop(place, []))
    return Footprint(most, 0, moved)


def _bytes(node: Node) -> int:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    return sum(one.nbytes for one in values if isinstance(one, torch.Tensor))
