"""products: every product of two tensors becomes ``zoexport::matmul``, with its transposes as flags.

Before, as a backward pass writes them::

    g = aten.mm(aten.permute(x, [1, 0]), dy)
    o = aten.bmm(p, aten.view(aten.expand(v, ...), [8, 16, 16]))

After::

    g = zoexport.matmul(x, dy, True, False)
    o = zoexport.matmul(p, aten.view(...), False, False)

A product that is read transposed is computed transposed: its rows are then contiguous.

A sum of two products that nothing else reads becomes a product that adds to the other: an adapter's
product is never stored apart from the layer's result. Before::

    y = aten.add(aten.view(zoexport.linear_int4(x, ...), [...]), zoexport.matmul(u, B, ...))

After::

    y = zoexport.add_matmul(aten.view(zoexport.linear_int4(x, ...), [...]), u, B, ...)
"""

from __future__ import annotations

import math
from typing import Any

from torch.fx import Node

from zoexport.core.graph import Program
from zoexport.ir.graphs import (
    INPUT_GRADIENTS,
    QUANTIZED_LINEARS,
    RESHAPES,
    arguments,
    aten,
    call,
    is_call,
    operand,
    shape_of,
    zo,
)
from zoexport.targets.executorch.layouts import COPIES, permutation, resolved, strided


def write_products(program: Program) -> None:
    """Rewrite a program whose recorded shapes are numbers."""
    nodes = program.module.graph
    for node in list(nodes.nodes):
        with nodes.inserting_before(node):
            made = _product(node)
        if made is not None:
            node.replace_all_uses_with(made)
            nodes.erase_node(node)
    for node in list(nodes.nodes):
        with nodes.inserting_before(node):
            made = _sum(node)
        if made is not None:
            node.replace_all_uses_with(made)
            nodes.erase_node(node)
    nodes.eliminate_dead_code()


_WORTH_A_CALL = 1 << 16
"""Elements of a product of which none need be written and read again, where that takes another call."""
_RESULTS = (
    zo.matmul,
    zo.add_matmul,
    *QUANTIZED_LINEARS,
    *INPUT_GRADIENTS,
)


def _sum(node: Node) -> Node | None:
    if not is_call(node, aten.add) or node.kwargs or len(node.all_input_nodes) != 2:
        return None
    first, second = node.all_input_nodes
    for base, added in ((first, second), (second, first)):
        (before, of_base), (product, factor) = _read_once(base), _read_once(added)
        if not is_call(product, zo.matmul) or not is_call(before, *_RESULTS) or of_base != 1:
            continue
        if shape_of(base) != shape_of(added) or shape_of(base)[-1] != shape_of(product)[-1]:
            continue
        graph = node.graph
        a, *others = arguments(product)
        if factor != 1:
            if math.prod(shape_of(product)) < _WORTH_A_CALL:
                continue
            a = call(graph, aten.mul.Tensor, a, factor)
        c = call(graph, aten.view.default, before, list(shape_of(product)))
        made = call(graph, zo.add_matmul.default, c, a, *others)
        return call(graph, aten.view.default, made, list(shape_of(node)))
    return None


def _read_once(node: Node) -> tuple[Node | None, float]:
    """Return the source and factor of a chain of reshapes and scales; None if shared."""
    factor = 1.0
    while len(node.users) == 1:
        if is_call(node, *RESHAPES, aten.clone, aten.contiguous):
            node = operand(node)
        elif is_call(node, aten.mul) and isinstance(node.args[1], int | float):
            factor *= float(node.args[1])
            node = operand(node)
        else:
            return node, factor
    return None, factor


def _product(node: Node) -> Node | None:
    if is_call(node, aten.mm, aten.bmm, aten.matmul):
        return _matmul(node, *arguments(node)[:2])
    return None


def _matmul(node: Node, a: Node, b: Node) -> Node:
    """``a`` times ``b``; leading dimensions of ``a`` alone are rows."""
    graph, shape = node.graph, shape_of(node)
    flat = len(shape_of(b)) == 2 and len(shape_of(a)) > 2
    if flat:
        width = shape_of(a)[-1]
        a = call(graph, aten.view.default, a, [math.prod(shape_of(a)[:-1]), width])
    elif len(shape_of(a)) > 4 or shape_of(a)[:-2] != shape_of(b)[:-2]:
        lead = list(shape[:-2])
        a = _batched(a, lead)
        b = _batched(b, lead)
    elif len(shape_of(a)) == 3:
        heads = _with_heads(a), _with_heads(b)
        if shape_of(heads[0])[:-2] == shape_of(heads[1])[:-2]:
            a, b = heads
    a, turned_a = _upright(a)
    b, turned_b = _upright(b)
    if not flat and _is_read_transposed(node):
        swapped = call(graph, zo.matmul.default, b, a, not turned_b, not turned_a)
        made = _transposed(swapped)
    else:
        made = call(graph, zo.matmul.default, a, b, turned_a, turned_b)
    return made if shape_of(made) == shape else call(graph, aten.view.default, made, list(shape))


def _batched(node: Node, lead: list[int]) -> Node:
    """(count, m, n), repeated over leading dimensions that it lacks."""
    sizes = list(shape_of(node)[-2:])
    whole = call(node.graph, aten.expand.default, node, [*lead, *sizes])
    return call(node.graph, aten.reshape.default, whole, [math.prod(lead), *sizes])


def _with_heads(node: Node) -> Node:
    """(rows, heads, m, n) where (rows * heads, m, n) is a regrouping of that, which may not be contiguous."""
    if is_call(node, aten.permute) and permutation(node) == (0, 2, 1):
        turned = _with_heads(operand(node))
        return _transposed(turned) if len(shape_of(turned)) == 4 else node
    source = node
    while is_call(source, *RESHAPES, *COPIES, aten.expand):
        source = operand(source)
        if len(shape_of(source)) == 4 and shape_of(source)[-2:] == shape_of(node)[-2:]:
            lead = shape_of(source)[0] * shape_of(source)[1]
            return source if lead == shape_of(node)[0] else node
    return node


def _upright(node: Node) -> tuple[Node, bool]:
    """Return a value whose rows are contiguous, and whether it is the transpose of ``node``."""
    base, layouts = resolved(node)
    view: Any = strided(shape_of(base), layouts, ())
    if view.shape[-1] == 1 or view.stride(-1) == 1 or view.stride(-2) != 1:
        return node, False
    return _transposed(node), True


def _transposed(node: Node) -> Node:
    order = list(range(len(shape_of(node))))
    order[-2:] = order[:-3:-1]
    return call(node.graph, aten.permute.default, node, order)


def _is_read_transposed(node: Node) -> bool:
    """Return whether the only reader of ``node``, apart from reshapes, transposes the matrix."""
    matrix = shape_of(node)[-2:]
    while len(node.users) == 1:
        (node,) = node.users
        if is_call(node, aten.permute):
            order = permutation(node)
            return order[-1] == len(order) - 2
        if not is_call(node, *RESHAPES) or shape_of(node)[-2:] != matrix:
            return False
    return False
