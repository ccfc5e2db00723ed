"""Lengths: a graph that was captured at one length, run at any.

Passes work on graphs whose sizes are numbers. So that a program can still take shorter rows, it is captured at a prime
number of tokens that divides no other size of the model: every size that follows the sequence is then a multiple of
this number, and nothing else is. ``set_length`` replaces these sizes. Constants over positions (rotary tables, causal
masks) are cut to the first positions, which is right when what they hold at one position does not depend on the
length; ``agrees_at_other_lengths`` runs a program to see that it is so.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

from zoexport.core.errors import VerifyError
from zoexport.core.types import Dim, Program, TrainingGraph, Value
from zoexport.ir.graphs import RESHAPES, aten, copy_program, is_call, placeholders, shape_of
from zoexport.ir.interpret import interpret
from zoexport.ir.samples import sample_inputs

SHORTEST = 2
"""torch.export treats sizes of 0 and 1 as special."""
_ABOVE_AXES = 11
"""Numbers of axes and parts stand among a graph's numbers too."""
_TO_THE_END = (1 << 63) - 1
_CLOSE = 1e-4
"""Relative to the largest log-probability: sums of other lengths round differently."""


def telling_length(seq_len: int, sizes: Iterable[int], limit: int | None) -> int | None:
    """The smallest prime from ``seq_len`` on that divides none of ``sizes``; None where that is above ``limit``."""
    others = {size for size in sizes if size > 0}
    for length in itertools.count(max(seq_len, _ABOVE_AXES)):
        if limit is not None and length > limit:
            return None
        if _is_prime(length) and not any(size % length == 0 for size in others):
            return length
    raise AssertionError


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, math.isqrt(number) + 1))


def follows(size: object, length: int) -> bool:
    """Whether a size of a graph captured at ``length`` follows the sequence."""
    return isinstance(size, int) and 0 < size < _TO_THE_END and size % length == 0


def set_length(program: Program, length: int, wanted: int | Dim) -> None:
    """Make a program captured at ``length`` take rows of ``wanted`` tokens. Recorded shapes are not brought up to date.

    Raises:
        VerifyError: a constant has a dimension that mixes the sequence with something else.
    """
    nodes = program.module.graph
    tokens = placeholders(program)["tokens"]
    if isinstance(wanted, Dim):
        last = [node for node in nodes.nodes if node.op == "placeholder"][-1]
        with nodes.inserting_after(last):
            size: Any = nodes.call_function(aten.sym_size.int, (tokens, 1))
    else:
        size = wanted
    sizes = _Sizes(nodes, length, size)
    for value, node in zip(program.inputs, placeholders(program).values(), strict=True):
        if value.role == "weight" and any(follows(part, length) for part in value.shape):
            _cut(program, value, node, sizes)
    for node in nodes.nodes:
        if node.op == "call_function" and node not in sizes.made:
            sizes.replace(node)
    program.inputs = [_resized(value, length, wanted) for value in program.inputs]
    nodes.eliminate_dead_code()
    program.module.recompile()


class _Sizes:
    """The sizes of one graph as expressions of its new length."""

    def __init__(self, nodes: Graph, length: int, size: Any) -> None:
        self.nodes = nodes
        self.length = length
        self.size = size
        self.multiples: dict[int, Any] = {1: size}
        self.made: set[Node] = {size} if isinstance(size, Node) else set()

    def of(self, number: Any) -> Any:
        """What stands for a number of the captured graph."""
        if not follows(number, self.length):
            return number
        times = number // self.length
        if times not in self.multiples:
            if isinstance(self.size, Node):
                with self.nodes.inserting_after(self.size):
                    product = self.nodes.call_function(operator.mul, (self.size, times))
                self.made.add(product)
                self.multiples[times] = product
            else:
                self.multiples[times] = self.size * times
        return self.multiples[times]

    def replace(self, node: Node) -> None:
        """Bring the numbers among a node's arguments up to date."""
        if is_call(node, *RESHAPES):
            source, shape = node.args
            assert isinstance(shape, list | tuple)
            if any(follows(part, self.length) for part in shape):
                shape = list(shape_of(node))
            if sum(follows(part, self.length) for part in shape) == 1:
                # A reshape can leave one size open; it then needs no arithmetic on sizes.
                shape = [-1 if follows(part, self.length) else part for part in shape]
            node.args = (source, [self.of(part) for part in shape])
            return
        node.args, node.kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), self.of)  # type: ignore[assignment]


def _cut(program: Program, value: Value, node: Node, sizes: _Sizes) -> None:
    """Read a constant over positions only as far as the rows go."""
    cut = node
    readers = list(node.users)
    with program.module.graph.inserting_before(readers[0] if readers else node.next):
        for axis, part in enumerate(value.shape):
            if part == sizes.length:
                cut = program.module.graph.call_function(
                    aten.slice.Tensor, (cut, axis, 0, sizes.size)
                )
                sizes.made.add(cut)
            elif follows(part, sizes.length):
                raise VerifyError(
                    f"constant {value.name}",
                    found=f"the dimension {part}, which is {part // sizes.length} times the sequence",
                    expected="dimensions that are the sequence or do not depend on it",
                    fix="Report the model's architecture.",
                )
    for reader in readers:
        reader.replace_input_with(node, cut)


def _resized(value: Value, length: int, wanted: int | Dim) -> Value:
    if value.role != "tokens":
        return value
    shape = tuple(wanted if size == length else size for size in value.shape)
    return Value(value.name, value.role, value.dtype, shape)


def agrees_at_other_lengths(graph: TrainingGraph, program: str) -> bool:
    """Whether ``program`` says the same of rows that are cut after their last label."""
    length = graph.length
    captured = graph.programs[program]
    rows = graph.rows
    shorter = max(SHORTEST, length // 2)
    count = min(graph.max_labels, rows * shorter)
    row = torch.arange(rows).repeat_interleave(shorter)[:count]
    position = torch.arange(shorter).repeat(rows)[:count]
    inputs = sample_inputs(graph, captured)
    inputs["label_tokens"] = inputs["tokens"][row, position]
    inputs["label_positions"] = row * length + position
    whole = interpret(graph, program, inputs)["label_logprobs"]
    copied = copy_program(captured, program)
    inputs["tokens"] = inputs["tokens"][:, :shorter].contiguous()
    inputs["label_positions"] = row * shorter + position
    try:
        set_length(copied, length, shorter)
        cut = dataclasses.replace(graph, programs={program: copied})
        part = interpret(cut, program, inputs)["label_logprobs"]
    except (VerifyError, RuntimeError):
        return False
    return bool((whole - part).abs().max() <= _CLOSE * whole.abs().max())
