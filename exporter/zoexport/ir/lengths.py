"""Lengths: a graph that was captured at one length, run at any.

Passes work on graphs whose sizes are numbers. So that a program can still take shorter rows, it is captured at a prime
number of tokens that divides no other size of the model: every size that follows the sequence is then a multiple of
this number, and nothing else is. ``set_length`` replaces these sizes. Constants over positions
(rotary tables, causal masks) are cut to the first positions, which is correct if their values do
not depend on the length; ``agrees_at_other_lengths`` runs a program to verify this.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.fx import Node

from zoexport.core.errors import VerifyError
from zoexport.core.graph import Dim, Program, TrainingGraph, Value
from zoexport.ir.graphs import aten, copy_program, is_own, placeholders
from zoexport.ir.interpret import interpret
from zoexport.ir.samples import sample_inputs
from zoexport.ir.shapes import record_shapes

_ABOVE_AXES = 11
"""Numbers of axes and parts stand among a graph's numbers too."""
_FOLLOWING = ("tokens", "activation", "logits", "table", "cache_rows", "dropout")
"""Roles of values whose sizes are rows and tokens."""
_STEPS = {False: (32, 2), True: (16, 8)}
"""By whether lengths are close: tokens of the shortest rows, and steps per doubling of lengths."""
_LEAST_STEP = 4
_TO_THE_END = (1 << 63) - 1
_CLOSE = 1e-4
"""Relative to the largest log-probability: sums of other lengths round differently."""


class FixedLength(Exception):
    """Raised if a graph captured for any length gives different results for shorter rows."""


def marker_prime(max_length: int, sizes: Iterable[int], limit: int | None) -> int | None:
    """Return the length at which to capture a graph, which marks sizes that follow the sequence.

    Returns:
        The smallest prime >= ``max_length`` that divides none of ``sizes``; None if > ``limit``.
    """
    others = {size for size in sizes if size > 0}
    for length in itertools.count(max(max_length, _ABOVE_AXES)):
        if limit is not None and length > limit:
            return None
        if _is_prime(length) and not any(size % length == 0 for size in others):
            return length
    raise AssertionError


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, math.isqrt(number) + 1))


def numbers_of(node: Node) -> list[int]:
    """Return the integers that a call has as arguments and in the shapes of its results."""
    found: list[int] = []

    def note(value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            found.append(value)
        return value

    torch.fx.node.map_aggregate((node.args, node.kwargs), note)
    values = node.meta.get("val")
    for value in values if isinstance(values, list | tuple) else [values]:
        if isinstance(value, torch.Tensor):
            torch.fx.node.map_aggregate(tuple(value.shape), note)
    return found


def follows(size: object, length: int) -> bool:
    """Return whether a size of a graph captured at ``length`` follows the sequence."""
    return isinstance(size, int) and 0 < size < _TO_THE_END and size % length == 0


def set_length(program: Program, length: int, wanted: int) -> None:
    """Make a program captured at ``length`` take ``wanted`` tokens; recorded shapes stay stale.

    Raises:
        VerifyError: a constant has a dimension that mixes the sequence with something else.
    """
    cuts = {value.name: position_axes(value, length) for value in program.inputs}
    _set_size(program, length, wanted, cuts)


def set_rows(program: Program, rows: int, wanted: int) -> None:
    """Make a program bound to ``rows`` sequences take ``wanted`` sequences.

    ``rows`` divides no other size. Constants with a part per sequence keep the first ``wanted``.
    """
    cuts = {
        value.name: [axis for axis, size in enumerate(value.shape) if follows(size, rows)]
        if value.role == "weight"
        else []
        for value in program.inputs
    }
    _set_size(program, rows, wanted, cuts)


def _set_size(program: Program, size: int, wanted: int, cuts: Mapping[str, list[int]]) -> None:
    """Replace ``size`` and its multiples, and cut inputs along the axes of ``cuts``.

    A number is a multiple of its square where a reshape merges two axes, as those of attention's scores.
    """
    nodes = program.module.graph

    def resized(number: Any) -> Any:
        if isinstance(number, int) and number < 0:  # a start that counts from the end
            return -resized(-number)
        return resized(number // size) * wanted if follows(number, size) else number

    for node in nodes.nodes:
        # Integers of our own operators are numbers of slots, queries and axes, and code: no sizes.
        if node.op == "call_function" and not is_own(node):
            resize: Any = torch.fx.node.map_aggregate
            node.args, node.kwargs = resize((node.args, node.kwargs), resized)
    for value, node in zip(program.inputs, placeholders(program).values(), strict=True):
        for axis in cuts[value.name]:
            readers = list(node.users)
            kept = resized(value.shape[axis])
            with nodes.inserting_before(readers[0]):
                cut = nodes.call_function(aten.slice.Tensor, (node, axis, 0, kept))
            for reader in readers:
                reader.replace_input_with(node, cut)
            node = cut
    program.inputs = [_resized(value, resized) for value in program.inputs]
    program.outputs = [_resized(value, resized) for value in program.outputs]


def position_axes(value: Value, length: int) -> list[int]:
    """Return the axes of a weight that are positions.

    Raises:
        VerifyError: an axis mixes positions with something else.
    """
    if value.role != "weight":
        return []
    for size in value.shape:
        if size != length and follows(size, length):
            raise VerifyError(
                f"constant {value.name}",
                found=f"a dimension of {size}, a multiple of the sequence's {length}",
                expected="constants with one row for each position",
                fix="Report the model's architecture.",
            )
    return [axis for axis, size in enumerate(value.shape) if size == length]


def _resized(value: Value, resized: Callable[[Any], Any]) -> Value:
    if value.role not in _FOLLOWING:
        return value
    return dataclasses.replace(value, shape=tuple(resized(size) for size in value.shape))


def agrees_at_other_lengths(graph: TrainingGraph, program: str) -> bool:
    """Return whether ``program`` gives equal results for rows that are cut after the last label."""
    length = graph.length
    captured = graph.programs[program]
    rows = graph.rows
    shorter = length // 2
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
    except (VerifyError, RuntimeError, IndexError):
        return False
    return bool((whole - part).abs().max() <= _CLOSE * whole.abs().max())


def row_lengths(max_length: int, *, close: bool = False) -> list[int]:
    """The lengths that programs are made for: powers of two and what lies halfway between, up to ``max_length``.

    Args:
        close: eight lengths up to each power of two, at least four tokens apart, for programs in whose calls all
            rows are as long as the longest.
    """
    length, parts = _STEPS[close]
    found = {max_length}
    while length < max_length:
        found |= set(range(length, min(2 * length, max_length), max(_LEAST_STEP, length // parts)))
        length *= 2
    return sorted(found)


def close_sizes(graph: TrainingGraph, program: Program, length: int | None = None) -> None:
    """Make a program's sizes numbers: rows of ``length`` tokens (max_length), and the most label entries of a call."""
    wanted = graph.max_length if length is None else length
    if graph.length != wanted:
        set_length(program, graph.length, wanted)
    program.inputs = [_closed(value, graph.max_labels) for value in program.inputs]
    program.outputs = [_closed(value, graph.max_labels) for value in program.outputs]
    record_shapes(program)


def _closed(value: Value, labels: int) -> Value:
    shape = tuple(labels if isinstance(size, Dim) else size for size in value.shape)
    return dataclasses.replace(value, shape=shape)


def longest_rows_alone(graph: TrainingGraph) -> None:
    """Leave the programs for rows of max_length tokens: each length would hold all weights once more."""
    longest = graph.lengths[-1]
    graph.programs = {
        name: program
        for name, program in graph.programs.items()
        if program.length in (None, longest)
    }
    graph.lengths = [longest]
