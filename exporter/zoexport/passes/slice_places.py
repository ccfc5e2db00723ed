"""slice_places: what an index picks along one axis, at places that are constants and evenly spaced, is a slice.

Before, as Falcon picks its keys among heads, with ``places`` the constant [-2]::

    k = aten.index(heads, [None, None, places])          # (B, T, 1, D)

After::

    k = aten.slice(heads, 2, -2, -1)

A slice is another way to read, and its gradient is put in one place; that of an index is added up, as places may come
twice. Places from the end stay places from the end, as the axis may be one of tokens. Left alone: places that come
twice, are unevenly spaced, descend or depend on inputs, and indices of several axes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch.fx import Node

from zoexport.core.graph import Program, TrainingGraph
from zoexport.ir.graphs import arguments, aten, call, placeholders, remove_unused_weights
from zoexport.ir.rewrite import rewrite

_END = 2**63 - 1


def slice_places(graph: TrainingGraph) -> TrainingGraph:
    """Rewrite every program; rows are bound and constants folded."""
    for program in graph.programs.values():
        rewrite(program, [((aten.index,), functools.partial(_sliced, _constants(graph, program)))])
        remove_unused_weights(program)
    return graph


def _constants(graph: TrainingGraph, program: Program) -> dict[Node, torch.Tensor]:
    """The inputs that are tables of one axis, and not the model's own parameters, which may not be known yet."""
    nodes = placeholders(program)
    return {
        nodes[value.name]: graph.weights[value.name]
        for value in program.weights()
        if value.name not in graph.parameters and len(value.shape) == 1 and value.dtype == "int64"
    }


def _sliced(constants: Mapping[Node, torch.Tensor], node: Node) -> Node | None:
    source, indices = arguments(node)
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1 or given[0][1] not in constants:
        return None
    axis, index = given[0]
    places = constants[index].tolist()
    if not places:
        return None
    first, last = places[0], places[-1]
    step = places[1] - first if len(places) > 1 else 1
    if step < 1 or places != [*range(first, last + 1, step)] or first < 0 <= last:
        return None
    end = _END if last == -1 else last + 1
    return call(node.graph, aten.slice.Tensor, source, axis, first, end, step)
