"""Attention as models write it: found from its softmax back to a product and on to the next, and what masks hide.

    s = aten.matmul(q, aten.transpose(repeat(k), 2, 3))       # repeat: once for each query head of a group
    p = aten.softmax(s * 0.25 + mask, -1)
    o = aten.matmul(p, repeat(v))

What a mask hides is found by its values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from zoexport.core.graph import Program, Stage, TrainingGraph
from zoexport.ir.graphs import (
    RESHAPES,
    arguments,
    aten,
    call,
    constant_values,
    described,
    is_call,
    operand,
    placeholders,
    shape_of,
)

HIDDEN = -1e4
"""No score that is hidden may be above it."""
_ALONE = (*RESHAPES, aten.to, aten._to_copy, aten.clone, aten.contiguous)
_PRODUCTS = (aten.matmul, aten.bmm)


class OtherAttention(Exception):
    """Attention of a kind that is not known here.

    Attributes:
        found, expected: of the message.
    """

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(f"{found}; expected {expected}")
        self.found, self.expected = found, expected


@dataclasses.dataclass
class Attention:
    """One attention of a program.

    Attributes:
        queries, keys, values: operands of its products, (..., s, d), (..., d, s) and (..., s, e).
        result: the product with the values.
        scale, softcap: of the scores.
        biases: constants that are added to scores, with a factor.
        hidden: (mask, truth value that hides): what fills scores with a large negative number.
        key_biases: (rows, 1, 1, s), no constants, that are added to the scores of keys, with a factor.
    """

    queries: Node
    keys: Node
    values: Node
    result: Node
    scale: float
    softcap: float
    biases: list[tuple[Node, float]]
    hidden: list[tuple[Node, bool]]
    key_biases: list[tuple[Node, float]]


def softmaxes(program: Program, length: int) -> list[Node]:
    """Return the calls that make probabilities of scores (..., length, length)."""
    return [
        node
        for node in program.module.graph.nodes
        if is_call(node, aten.softmax, aten._softmax)
        and shape_of(node)[-2:] == (length, length)
        and arguments(node)[1] in (-1, len(shape_of(node)) - 1)
    ]


def attention_of(program: Program, softmax: Node) -> Attention:
    """Return the attention around ``softmax``: from the product before it to the product after it.

    Raises:
        OtherAttention: it is of another kind.
    """
    constants = _constant_nodes(program)
    factor, softcap = 1.0, 0.0
    biases: list[tuple[Node, float]] = []
    hidden: list[tuple[Node, bool]] = []
    key_biases: list[tuple[Node, float]] = []
    node = operand(softmax)
    while not is_call(node, *_PRODUCTS, aten.baddbmm):
        given = arguments(node)
        if is_call(node, *_ALONE):
            node = operand(node)
        elif is_call(node, aten.mul, aten.div) and isinstance(given[1], int | float):
            factor = factor * given[1] if is_call(node, aten.mul) else factor / given[1]
            node = operand(node)
        elif is_call(node, aten.tanh) and not softcap:
            factor, softcap = 1.0, factor
            node = operand(node)
        elif softcap:
            raise _other(node, "scores that are masked after they are capped")
        elif is_call(node, aten.add) and not node.kwargs and len(constants & {*given}) == 1:
            (bias,) = constants & {*given}
            biases.append((bias, factor))
            (node,) = (arg for arg in given if arg is not bias)
        elif is_call(node, aten.add) and not node.kwargs and len(_of_keys(given)) == 1:
            ((added, row),) = _of_keys(given).items()
            key_biases.append((row, factor))
            (node,) = (arg for arg in given if arg is not added)
        elif is_call(node, aten.masked_fill) and given[1] in constants and _is_low(given[2]):
            hidden.append((given[1], True))
            node = operand(node)
        elif is_call(node, aten.where) and given[0] in constants and _is_low(given[2]):
            hidden.append((given[0], False))
            node = operand(node, 1)
        else:
            raise _other(node, "scores that are scaled, capped and masked")
    given = arguments(node)
    if is_call(node, aten.baddbmm):
        named: Mapping[str, Any] = node.kwargs
        alpha, beta = named.get("alpha", 1), named.get("beta", 1)
        if beta and (softcap or given[0] not in constants):
            raise _other(node, "a constant that is added to scores")
        biases += [(given[0], factor * float(beta))] if beta else []
        factor *= float(alpha)
        given = given[1:]
    result = _reader(softmax)
    scale = factor * softcap if softcap else factor
    values = operand(result, 1)
    return Attention(given[0], given[1], values, result, scale, softcap, biases, hidden, key_biases)


def _other(node: Node, expected: str) -> OtherAttention:
    return OtherAttention(described(node), expected)


def _reader(softmax: Node) -> Node:
    """Return the product of probabilities and values."""
    node = softmax
    while len(node.users) == 1:
        (reader,) = node.users
        if is_call(reader, *_PRODUCTS) and operand(reader) is node:
            return reader
        if not is_call(reader, *_ALONE):
            break
        node = reader
    raise _other(node, "probabilities that are multiplied by values and by nothing else")


def _of_keys(given: tuple[Any, ...]) -> dict[Node, Node]:
    """Operands that say the same of a key to all heads and queries (``mask_padding``), and what is expanded there."""
    found = {}
    for arg in given:
        if is_call(arg, aten.expand):
            row = operand(arg)
            shape, whole = shape_of(row), shape_of(arg)
            if len(shape) == len(whole) == 4 and shape == (whole[0], 1, 1, whole[3]):
                found[arg] = row
    return found


def _is_low(value: Any) -> bool:
    """Return whether a number or a scalar constant is low enough to mask a score."""
    if is_call(value, aten.scalar_tensor, aten.full):
        value = arguments(value)[1 if is_call(value, aten.full) else 0]
    return isinstance(value, int | float) and value <= HIDDEN


def _constant_nodes(program: Program) -> set[Node]:
    """Return the nodes that depend on constant tables alone, not on tokens or parameters."""
    found: set[Node] = set()
    values = zip(program.inputs, placeholders(program).values(), strict=True)
    found |= {node for value, node in values if value.role == "weight"}
    for node in program.module.graph.nodes:
        if node.op == "call_function" and found.issuperset(node.all_input_nodes):
            found.add(node)
    return found


# --- what is seen ---------------------------------------------------------------------------------


def tables_of(graph: TrainingGraph, stage: Stage) -> tuple[str, ...]:
    """Names of the tables that a stage binds: constants that are no parameters of the model.

    They are the same tensors in most layers, and as large as the square of a row.
    """
    names = (to for to in stage.bind.values() if to in graph.weights)
    return tuple(to for to in names if to not in graph.parameters)


def table_values(
    graph: TrainingGraph, program: Program, stage: Stage
) -> Callable[[Node], torch.Tensor]:
    """Return values of a stage's tables and of nodes computed from tables alone.

    The function raises OtherAttention for what depends on weights.
    """
    tables = {
        local: graph.weights[name]
        for local, name in stage.bind.items()
        if name in graph.weights and name not in graph.parameters
    }
    values = constant_values(program, tables, lambda node: False)

    def value(node: Node) -> torch.Tensor:
        if node not in values:
            raise _other(node, "masks and biases that do not depend on weights")
        found: torch.Tensor = values[node]
        return found

    return value


def scores_added(
    attention: Attention, value: Callable[[Node], torch.Tensor], length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bias and the mask of scores, float32 and bool (h, length, length), h heads or 1.

    Raises:
        OtherAttention: rows of a batch are treated differently, or constants depend on weights.
    """
    bias = torch.zeros(1, length, length)
    for node, factor in attention.biases:
        bias = bias + factor * _by_head(value(node).float(), length)
    hides = bias <= HIDDEN
    for node, truth in attention.hidden:
        hides = hides | (_by_head(value(node).bool(), length) == truth)
    return bias, hides


def _by_head(value: torch.Tensor, length: int) -> torch.Tensor:
    """A constant that is added to scores, as (h, s, s); of a batch of equal rows, the first one."""
    value = value.reshape([1] * (3 - value.dim()) + list(value.shape))
    if value.dim() == 4:
        if not bool((value == value[:1]).all()):
            raise OtherAttention("a mask that rows of a batch differ in", "masks of places alone")
        value = value[0]
    return value.expand(value.shape[0], length, length)


def seen_before(hides: torch.Tensor) -> int | None:
    """Return the window of a causal mask, in tokens (0: all); None for other masks.

    Args:
        hides: bool (h, length, length), True for masked scores.
    """
    length = hides.shape[-1]
    behind = torch.arange(length)[:, None] - torch.arange(length)[None]
    # The first column of the last row is furthest back.
    window = int((~hides[0, -1]).sum())
    expected = (behind < 0) | (behind >= window)
    if not bool((hides == expected).all()):
        return None
    return 0 if window == length else window


# --- rewriting ------------------------------------------------------------------------------------


def transposed(node: Node) -> Node:
    """Transpose (..., d, s) to (..., s, d); undo an existing transpose if there is one."""
    rank = len(shape_of(node))
    if is_call(node, aten.transpose) and {axis % rank for axis in arguments(node)[1:3]} == {
        rank - 2,
        rank - 1,
    }:
        return operand(node)
    return call(node.graph, aten.transpose.int, node, -2, -1)


def unrepeated(node: Node) -> Node:
    """Return the (b, n, s, d) value that ``node`` repeats for heads of groups; else ``node``."""
    if not is_call(node, *RESHAPES):
        return node
    expand = operand(node)
    while is_call(expand, aten.clone, aten.contiguous):
        expand = operand(expand)
    if not is_call(expand, aten.expand):
        return node
    single = operand(expand)
    before, after = shape_of(single), shape_of(expand)
    grouped = len(before) == 5 and before[2] == 1 and before[:2] == after[:2]
    if not (grouped and before[3:] == after[3:] == shape_of(node)[-2:]):
        return node
    if len(shape_of(node)) == 4 and shape_of(node)[0] != before[0]:
        return node
    if is_call(single, aten.unsqueeze) and len(shape_of(operand(single))) == 4:
        return operand(single)
    return call(node.graph, aten.reshape.default, single, [*before[:2], *before[3:]])


def with_heads(node: Node, rows: int) -> Node:
    """(rows, h, s, d) of (rows * h, s, d) or (rows, h, s, d)."""
    shape = shape_of(node)
    if len(shape) == 4 and shape[0] == rows:
        return node
    flat = [rows, math.prod(shape[:-2]) // rows, *shape[-2:]]
    return call(node.graph, aten.reshape.default, node, flat)
