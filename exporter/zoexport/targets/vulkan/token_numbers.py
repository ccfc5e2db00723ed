"""token_numbers: what programs compute of tokens is computed in float32, as the engine's shaders have no integers.

Encoders compute their mask and some of their positions so. Before, in RoBERTa's embedding::

    seen = aten.to(aten.ne(tokens, 1), int32)
    at   = aten.add(aten.mul(aten.cumsum(seen, 1), seen), 1)
    y    = aten.add(aten.embedding(positions, at), aten.embedding(types, aten.zeros_like(tokens)))

After, with the numbers of the table's rows, ``rows``, by a sum over ones::

    seen   = aten.mul(aten.ne(aten._to_copy(tokens, float32), 1.0), 1.0)
    at     = aten.add(aten.mul(aten.cumsum(seen, 1), seen), 1.0)
    chosen = aten.mul(aten.eq(aten.unsqueeze(at, -1), rows), 1.0)
    y      = aten.add(aten.matmul(chosen, positions), aten.expand(aten.slice(types, 0, 0, 1), ...))

These numbers, and a product with a one among zeros, are exact. Left alone: tokens that are looked up as they are, and
operators that are not named here, which lowering refuses.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from zoexport.core.graph import Program
from zoexport.ir.graphs import (
    arguments,
    aten,
    call,
    copy_program,
    is_call,
    placeholders,
    remove_unused_weights,
    shape_of,
)

_CONVERSIONS = (aten.to, aten._to_copy, aten.type_as)
_FILLED = (aten.zeros_like, aten.full_like)
_COMPARED = (aten.eq, aten.ne)
_COMPUTED = (aten.add, aten.mul)
Number = Node | float
"""A float32 tensor, or what all elements are."""


def with_float_tokens(program: Program) -> Program:
    """A copy of ``program`` that computes nothing of tokens in integers; itself where it computes nothing of them."""
    tokens = _tokens(program)
    if tokens is None or all(_looks_up(user) for user in tokens.users):
        return program
    made = copy_program(program, program.name)
    tokens = _tokens(made)
    assert tokens is not None
    numbers: dict[Node, Number] = {}
    for node in list(made.module.graph.nodes):
        if node.op != "call_function":
            continue
        with made.module.graph.inserting_before(node):
            if is_call(node, aten.embedding) and arguments(node)[1] in numbers:
                node.replace_all_uses_with(_rows(node, numbers[arguments(node)[1]]))
                continue
            number = _number(node, tokens, numbers)
        if number is not None:
            numbers[node] = number
            if isinstance(number, Node) and node.meta["val"].dtype == torch.float32:
                node.replace_all_uses_with(number)
                numbers[number] = number
    remove_unused_weights(made)
    return made


def _tokens(program: Program) -> Node | None:
    nodes = placeholders(program)
    return next((nodes[value.name] for value in program.inputs if value.role == "tokens"), None)


def _looks_up(node: Node) -> bool:
    return not is_call(node, *_FILLED, *_COMPARED, *_CONVERSIONS)


def _number(node: Node, tokens: Node, numbers: dict[Node, Number]) -> Number | None:
    """The result of a call on tokens, or on what was computed of them; None of another call."""
    given = arguments(node)
    if not {*node.all_input_nodes} <= {tokens, *numbers} or not node.all_input_nodes:
        return None
    if is_call(node, *_FILLED):
        return float(given[1]) if is_call(node, aten.full_like) else 0.0

    def float32(value: Node | float) -> Number:
        if value is tokens:
            return call(node.graph, aten._to_copy.default, tokens, dtype=torch.float32)
        return numbers[value] if isinstance(value, Node) else float(value)

    if is_call(node, *_CONVERSIONS):
        return float32(given[0])
    if is_call(node, *_COMPARED) and not isinstance(given[1], Node):
        truth = call(node.graph, node.target, float32(given[0]), float32(given[1]))
        return call(node.graph, aten.mul.Tensor, truth, 1.0)
    if is_call(node, *_COMPUTED) and not node.kwargs:
        return call(node.graph, node.target, *(float32(value) for value in given))
    if is_call(node, aten.cumsum):
        return call(node.graph, aten.cumsum.default, float32(given[0]), given[1])
    return None


def _rows(node: Node, number: Number) -> Node:
    """Return the rows of a table with these numbers."""
    table, graph = arguments(node)[0], node.graph
    if not isinstance(number, Node):
        row = call(graph, aten.slice.Tensor, table, 0, int(number), int(number) + 1)
        return call(graph, aten.expand.default, row, list(shape_of(node)))
    count = shape_of(table)[0]
    ones = graph.call_function(aten.full.default, ([count], 1.0), {"dtype": torch.float32})
    ones.meta["val"] = table.meta["val"].new_ones(count)
    rows = call(graph, aten.sub.Tensor, call(graph, aten.cumsum.default, ones, 0), 1.0)
    equal = call(graph, aten.eq.Tensor, call(graph, aten.unsqueeze.default, number, -1), rows)
    chosen = call(graph, aten.mul.Tensor, equal, 1.0)
    return call(graph, aten.matmul.default, chosen, table)
