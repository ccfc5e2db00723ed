"""Operators that the HTP has not, computes element by element, or gives wrong numbers for.

Parts of a gradient among zeros::

    g = slice_scatter(0, a, -1, 0, n) + slice_scatter(0, b, -1, n, 2 n)      ->     g = cat([a, b], -1)
    g = slice_scatter(0, a, -1, n, 2 n)                ->     g = cat([zeros, a], -1)
    g = index_put(0, [None, [4, 5]], a, True)          ->     g = cat([zeros, a, zeros], 1)

A constant place counted from the end, which the HTP takes for another (Falcon's keys and values)::

    k = index(x, [None, [-2]])                         ->     k = slice(x, 1, 4, 5)

A product of heads that share one operand, which the HTP multiplies wrongly (QNN 2.51; also Falcon)::

    s = matmul(q (2, 4, 24, 16), k (2, 1, 16, 24))     ->     s = matmul(q, expand(k, [2, 4, 16, 24]))

The error function, from which the tanh form of GELU differs by less than fp16 does::

    y = erf(z)                                         ->     y = tanh(1.12838 z + 0.100911 z^3)
    y = gelu(x)                                        ->     y = x/2 (1 + tanh(...))

Left alone: places that are not constants, or named twice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node

from zoexport.core.graph import Program
from zoexport.ir.graphs import arguments, aten, call, is_call, operand, placeholders, shape_of
from zoexport.ir.rewrite import rewrite

_MOST_PLACES = 8
"""A slice is made for each."""
_SLOPE = 2 / math.sqrt(math.pi)
_CUBE = 0.044715 * _SLOPE * 2


def lacking_operators(program: Program, weights: Mapping[str, Tensor]) -> None:
    """Rewrite a program, whose recorded shapes are numbers."""
    nodes = program.module.graph
    names = {node: name for name, node in placeholders(program).items()}
    rewrite(
        program,
        [
            ((aten.erf,), lambda node: _erf(nodes, operand(node))),
            ((aten.gelu,), _gelu),
            ((aten.index_put,), lambda node: _put(nodes, node, names, weights)),
            ((aten.index,), lambda node: _index(nodes, node, names, weights)),
            ((aten.add,), lambda node: _side_by_side(nodes, node)),
            ((aten.matmul,), lambda node: _share_nothing(nodes, node)),
        ],
    )
    nodes.eliminate_dead_code()
    rewrite(program, [((aten.slice_scatter,), lambda node: _alone(nodes, node))])
    nodes.eliminate_dead_code()


def _alone(nodes: Graph, node: Node) -> Node | None:
    found = _part(node)
    if found is None:
        return None
    part, axis, begin, end = found
    return _among_zeros(nodes, operand(node), axis, [(part, begin, end)])


def _erf(nodes: Graph, z: Node) -> Node:
    square = call(nodes, aten.mul.Tensor, z, z)
    slope = call(nodes, aten.add.Scalar, call(nodes, aten.mul.Scalar, square, _CUBE), _SLOPE)
    return call(nodes, aten.tanh.default, call(nodes, aten.mul.Tensor, z, slope))


def _share_nothing(nodes: Graph, node: Node) -> None:
    """Repeat an operand of a product over the leading dimensions of the other."""
    if not is_call(node, aten.matmul) or min(len(shape_of(arg)) for arg in arguments(node)) < 3:
        return
    lead = shape_of(node)[:-2]
    for place, arg in enumerate(arguments(node)):
        if shape_of(arg)[:-2] != lead:
            whole = call(nodes, aten.expand.default, arg, [*lead, *shape_of(arg)[-2:]])
            node.update_arg(place, whole)


def _index(
    nodes: Graph, node: Node, names: Mapping[Node, str], weights: Mapping[str, Tensor]
) -> Node | None:
    """Values at constant places of one axis."""
    source, indices = arguments(node)
    found = _places(source, indices, names, weights)
    if found is None:
        return None
    axis, places = found
    pieces = [call(nodes, aten.slice.Tensor, source, axis, place, place + 1) for place in places]
    return pieces[0] if len(pieces) == 1 else call(nodes, aten.cat.default, pieces, axis)


def _gelu(node: Node) -> Node:
    """``x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`` (Hendrycks and Gimpel, section 2).

    The HTP's own operator computes another function: up to 7.8e-3 off, against 2.6e-3 of the simple operators in fp16.
    """
    x, made = operand(node), functools.partial(call, node.graph)
    cube = made(aten.mul.Tensor, made(aten.mul.Tensor, x, x), x)
    inner = made(aten.add.Tensor, x, made(aten.mul.Tensor, cube, 0.044715))
    inner = made(aten.mul.Tensor, inner, math.sqrt(2 / math.pi))
    factor = made(aten.add.Tensor, made(aten.tanh.default, inner), 1.0)
    return made(aten.mul.Tensor, made(aten.mul.Tensor, x, 0.5), factor)


def _put(
    nodes: Graph, node: Node, names: Mapping[Node, str], weights: Mapping[str, Tensor]
) -> Node | None:
    """Values put at constant places of one axis."""
    zeros, indices, values, *_ = arguments(node)
    found = _places(zeros, indices, names, weights)
    if found is None or not _is_zero(zeros):
        return None
    axis, places = found
    if len({*places}) < len(places) or shape_of(values)[axis] != len(places):
        return None
    pieces = []
    for number in sorted(range(len(places)), key=places.__getitem__):
        piece = call(nodes, aten.slice.Tensor, values, axis, number, number + 1)
        pieces.append((piece, places[number], places[number] + 1))
    return _among_zeros(nodes, zeros, axis, pieces)


def _places(
    source: Node,
    indices: list[Node | None],
    names: Mapping[Node, str],
    weights: Mapping[str, Tensor],
) -> tuple[int, list[int]] | None:
    """The axis and the places, from 0, where an index names constant ones of one axis, and few."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        return None
    axis, index = given[0]
    places = weights.get(names.get(index, ""))
    if places is None or places.dim() != 1 or len(places) > _MOST_PLACES:
        return None
    size = shape_of(source)[axis]
    return axis, [int(place) % size for place in places.tolist()]


def _side_by_side(nodes: Graph, node: Node) -> Node | None:
    """Return the two parts of a sum of parts among zeros that fill it without a gap."""
    if not is_call(node, aten.add) or node.kwargs or len(node.all_input_nodes) != 2:
        return None
    parts = [found for arg in node.all_input_nodes if (found := _part(arg)) is not None]
    if len(parts) != 2 or parts[0][1] != parts[1][1]:
        return None
    first, second = sorted(parts, key=lambda part: part[2])
    axis = first[1]
    if (first[2], first[3], second[3]) != (0, second[2], shape_of(node)[axis]):
        return None
    return call(nodes, aten.cat.default, [first[0], second[0]], axis)


def _among_zeros(nodes: Graph, zeros: Node, axis: int, pieces: list[tuple[Node, int, int]]) -> Node:
    """Pieces with their first place and the one after their last, in order, among zeros of the shape of ``zeros``."""
    filled: list[Node] = []
    end, size = 0, shape_of(zeros)[axis]
    for piece, begin, after in pieces:
        if begin > end:
            filled.append(call(nodes, aten.slice.Tensor, zeros, axis, end, begin))
        filled.append(piece)
        end = after
    if size > end:
        filled.append(call(nodes, aten.slice.Tensor, zeros, axis, end, size))
    return call(nodes, aten.cat.default, filled, axis)


def _is_zero(node: Node) -> bool:
    return is_call(node, aten.full) and arguments(node)[1] == 0


def _part(node: Node) -> tuple[Node, int, int, int] | None:
    """The part, axis, begin and end where ``node`` is a part among zeros."""
    if not is_call(node, aten.slice_scatter) or not _is_zero(operand(node)):
        return None
    _, part, *place = arguments(node)
    defaults: list[Any] = [0, None, None, 1]
    axis, begin, end, step = place + defaults[len(place) :]
    if step != 1:
        return None
    size = shape_of(node)[axis]
    begin, end, _ = slice(begin, end).indices(size)
    return part, axis % len(shape_of(node)), begin, end
