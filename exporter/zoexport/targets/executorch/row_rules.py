"""row_rules: decompose a program into products and what treats rows alone.

Each rule states what stands there afterwards. They serve ``products`` and ``fuse_rows``, which know few operators.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.fx import Node

from zoexport.core.graph import Program
from zoexport.core.interpreted import InterpretedGraph
from zoexport.ir.decompose import Decompositions, core_decompositions
from zoexport.ir.graphs import (
    RESHAPES,
    arguments,
    aten,
    call,
    is_call,
    operand,
    remove_unused_weights,
    shape_of,
)
from zoexport.ir.rewrite import Rule, rewrite
from zoexport.ir.shapes import record_shapes
from zoexport.targets.executorch.layouts import place_of_part

_SHORT = 16
"""Additions for a sum over so many parts at most."""


def decompose(program: Program) -> None:
    """Rewrite ``program``, whose recorded shapes are numbers, in core operators without norms, splits and selects."""
    program.module = InterpretedGraph(_decompositions().apply(program.module.graph))
    rules: tuple[Rule, ...] = (
        _split,
        _select,
        _sum_of_parts,
        _without_empty_parts,
        _part_of_a_wider_row,
        _sum_of_views,
        _scaled_where_it_is_read,
    )
    rewrite(program, [((), rule) for rule in rules])
    remove_unused_weights(program)
    record_shapes(program)


@functools.cache
def _decompositions() -> Decompositions:
    table: dict[Any, Callable[..., Any]] = {
        **core_decompositions(),
        **get_decompositions([aten.baddbmm, aten.gelu_backward, aten.stack]),
        aten.native_layer_norm.default: _layer_norm,
        aten.addmm.default: _addmm,
    }
    table.pop(aten.gelu.default, None)
    return Decompositions(table)


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """addmm: a product and a sum, without factors of one."""
    product = a @ b
    return (product if alpha == 1 else alpha * product) + (bias if beta == 1 else beta * bias)


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """native_layer_norm: means and products."""
    axes = list(range(-len(shape), 0))
    mean = x.mean(axes, keepdim=True)
    centered = x - mean
    rstd = ((centered * centered).mean(axes, keepdim=True) + eps).rsqrt()
    y = centered * rstd
    y = y if weight is None else y * weight
    return y if bias is None else y + bias, mean, rstd


def _split(node: Node) -> tuple[Node, ...] | None:
    """split, unbind: a slice for each part."""
    if not is_call(node, aten.split_with_sizes, aten.split, aten.unbind):
        return None
    source, *given = arguments(node)
    single = is_call(node, aten.unbind)
    place = 0 if single else 1
    dim = (given[place] if len(given) > place else 0) % len(shape_of(source))
    sizes = [1 if single else part.shape[dim] for part in node.meta["val"]]
    pieces = [
        call(node.graph, aten.slice.Tensor, source, dim, begin, end)
        for begin, end in itertools.pairwise([0, *itertools.accumulate(sizes)])
    ]
    if not single:
        return tuple(pieces)
    return tuple(call(node.graph, aten.squeeze.dims, piece, [dim]) for piece in pieces)


def _select(node: Node) -> Node | None:
    """select: a slice of one, without its dimension."""
    if not is_call(node, aten.select):
        return None
    source, dim, index = arguments(node)
    size = shape_of(source)[dim]
    index = index % size
    dim = dim % len(shape_of(source))
    piece = call(node.graph, aten.slice.Tensor, source, dim, index, index + 1)
    return call(node.graph, aten.squeeze.dims, piece, [dim])


def _sum_of_parts(node: Node) -> Node | None:
    """sum over one short dimension that is not the last (the gradient of grouped heads): additions of its parts."""
    if not is_call(node, aten.sum) or len(arguments(node)) < 2:
        return None
    source, axes, *kept = arguments(node)
    sizes = shape_of(source)
    if len(axes) != 1 or axes[0] % len(sizes) == len(sizes) - 1 or sizes[axes[0]] > _SHORT:
        return None
    parts = [
        call(node.graph, aten.slice.Tensor, source, axes[0], index, index + 1)
        for index in range(sizes[axes[0]])
    ]
    total = parts[0]
    for part in parts[1:]:
        total = call(node.graph, aten.add.Tensor, total, part)
    return total if kept and kept[0] else call(node.graph, aten.squeeze.dims, total, [axes[0]])


def _without_empty_parts(node: Node) -> Node | None:
    """cat, slice_scatter of parts of size zero (rotary embeddings that turn whole heads): what is left of the parts."""
    if is_call(node, aten.cat):
        parts, *dim = arguments(node)
        kept = [part for part in parts if part.meta["val"].numel()]
        if len(kept) == 1 < len(parts):
            return _copy(kept[0])
        if 1 < len(kept) < len(parts):
            return call(node.graph, aten.cat.default, kept, *dim)
    if is_call(node, aten.slice_scatter) and not math.prod(shape_of(operand(node, 1))):
        return _copy(operand(node))
    return None


def _part_of_a_wider_row(node: Node) -> Node | None:
    """Rewrite slice_scatter over axis -2 (gradients of some heads) to one over joined rows."""
    if not is_call(node, aten.slice_scatter):
        return None
    below, part = operand(node), operand(node, 1)
    *lead, count, width = sizes = shape_of(node)
    axis, begin, after, step = place_of_part(node)
    if axis != len(sizes) - 2 or step != 1:
        return None
    whole = [*lead, count * width]
    if is_call(below, aten.full):
        # Use a constant of the row program instead of a view of a stored value.
        filled = node.graph.call_function(aten.full.default, (whole, *below.args[1:]), below.kwargs)
        filled.meta["val"] = below.meta["val"].view(whole)
        below = filled
    else:
        below = call(node.graph, aten.reshape.default, below, whole)
    part = call(node.graph, aten.reshape.default, part, [*lead, (after - begin) * width])
    places = begin * width, after * width
    made = call(node.graph, aten.slice_scatter.default, below, part, len(lead), *places)
    return call(node.graph, aten.view.default, made, list(sizes))


def _copy(node: Node) -> Node:
    """The value in its own order, as a call that is left out would have given it: later views may count on that."""
    return call(node.graph, aten.clone.default, node, memory_format=torch.contiguous_format)


def _sum_of_views(node: Node) -> Node | None:
    """Add before regrouping rows instead of after (gradients of parts of a row)."""
    if not is_call(node, aten.add) or node.kwargs or len(node.all_input_nodes) != 2:
        return None
    if not all(is_call(arg, *RESHAPES) for arg in arguments(node)):
        return None
    a, b = (operand(arg) for arg in node.all_input_nodes)
    whole = all(source.meta["val"].is_contiguous() for source in (a, b))
    if not whole or shape_of(a) != shape_of(b) or shape_of(a)[-1] == shape_of(node)[-1]:
        return None
    total = call(node.graph, aten.add.Tensor, a, b)
    return call(node.graph, aten.view.default, total, list(shape_of(node)))


def _scaled_where_it_is_read(node: Node) -> Node | None:
    """permute of a multiple: a multiple of the permute, so that products see how they are read."""
    if not is_call(node, aten.permute):
        return None
    source, order = arguments(node)
    if not is_call(source, aten.mul) or len(source.users) > 1 or len(source.all_input_nodes) > 1:
        return None
    value, factor = arguments(source)
    if not isinstance(factor, int | float):
        return None
    return call(
        node.graph, source.target, call(node.graph, aten.permute.default, value, order), factor
    )
