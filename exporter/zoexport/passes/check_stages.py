"""check_stages: whether the programs of a split graph can take rows of other lengths than they were captured at.

Nothing changes. Each program but the output head runs on random values as it is and cut to half the length; what it
says of the first half must be the same. A graph that was captured at its only length runs with another second half
instead: layers that see what follows a token are refused, as rows are padded behind their tokens.
"""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from zoexport.core.errors import ModelError, VerifyError
from zoexport.core.graph import LayerGraph, Program, Value
from zoexport.ir.graphs import aten, copy_program, is_call, operand, placeholders, shape_of
from zoexport.ir.lengths import FixedLength, set_length, set_rows
from zoexport.passes.split_layers import HEAD

_CLOSE = 1e-4
"""Relative to the largest value: sums of other lengths round differently."""
_TOKENS = 97
"""Most rows of the token embedding that stands in for the model's."""


def check_stages(graph: LayerGraph) -> LayerGraph:
    """Try every program at another length.

    Raises:
        FixedLength: one says something else of shorter rows.
        ModelError: at the only length, one says something else of a token if those after it change.
    """
    for program in graph.programs.values():
        if program.family != HEAD:
            if graph.any_length:
                _check(graph, program)
            elif graph.pad_token is None:
                _check_causal(graph, program)
    return graph


def _check_causal(graph: LayerGraph, program: Program) -> None:
    one = copy_program(program, program.name)
    set_rows(one, graph.rows, 1)
    given = {value.name: trial_value(graph, one, value) for value in one.inputs}
    with torch.no_grad():
        expected = one.module(*given.values())
        for value in one.inputs:
            if value.role in ("tokens", "activation"):
                kept = given[value.name]
                given[value.name] = changed = kept.max() - kept
                _first(graph, value, changed).copy_(_first(graph, value, kept))
        found = one.module(*given.values())
    for value, *both in zip(one.outputs, found, expected, strict=True):
        ours, theirs = (_first(graph, value, result) for result in both)
        if (ours - theirs).abs().max() > _CLOSE * theirs.abs().max():
            raise ModelError(
                f"[check_stages] program {program.name}",
                found="layers in which a token sees those after it",
                expected="a causal language model, whose tokens see those before them",
                fix="Choose a decoder, or set is_decoder in config.json if the model was trained as one.",
            )


def _check(graph: LayerGraph, program: Program) -> None:
    whole = copy_program(program, program.name)
    try:
        set_rows(whole, graph.rows, 1)
        part = copy_program(whole, program.name)
        half = graph.length // 2
        set_length(part, graph.length, half)
        inputs = {value.name: trial_value(graph, whole, value) for value in whole.inputs}
        with torch.no_grad():
            if graph.pad_token is not None and "tokens" in inputs:
                inputs["tokens"][:, half:] = graph.pad_token  # where rows see all of their tokens
            expected = whole.module(*inputs.values())
            cut = [
                _first(graph, wanted, value).contiguous()
                if wanted.role in ("tokens", "activation")
                else value
                for wanted, value in zip(whole.inputs, inputs.values(), strict=True)
            ]
            found = part.module(*cut)
    except (VerifyError, RuntimeError, IndexError) as error:
        raise FixedLength from error
    for value, ours, theirs in zip(whole.outputs, found, expected, strict=True):
        first = _first(graph, value, theirs)
        if ours.shape != first.shape:
            raise FixedLength
        if not (ours - first).abs().max() <= _CLOSE * theirs.abs().max():
            raise FixedLength


def _first(graph: LayerGraph, value: Value, tensor: torch.Tensor) -> torch.Tensor:
    """Return the first half of a value along its axis of positions, dimension 1 in most models."""
    axes = [1, *range(len(value.shape))]
    axis = next((axis for axis in axes if value.shape[axis] == graph.length), None)
    return tensor if axis is None else tensor.narrow(axis, 0, graph.length // 2)


def trial_value(graph: LayerGraph, program: Program, value: Value) -> torch.Tensor:
    """Return a trial value for an input of a split graph's program.

    Constants keep their values; all else is random, as weights do not change the use of positions.
    """
    shape = list(value.sizes())
    generator = torch.Generator().manual_seed(math.prod(shape))
    tables = _token_tables(program)
    if value.role == "tokens":
        highest = min([_TOKENS, *(shape_of(table)[0] for table in tables)])
        return torch.randint(highest, shape, generator=generator)
    if value.role in ("epsilon", "seed", "step"):
        return torch.zeros(shape, dtype=getattr(torch, value.dtype))
    stage = next(stage for stage in graph.stages if stage.forward == program.family)
    name = stage.bind.get(value.name, "")
    if value.role == "weight" and name not in graph.parameters:
        return graph.weights[name]
    if placeholders(program)[value.name] in tables:
        shape[0] = min(shape[0], _TOKENS)
    is_matrix = value.role == "weight" and len(shape) == 2
    # All of a layer's matrices together may be large: row i of one is row 0 moved by i, in the memory of a row and a
    # column.
    random = torch.randn([sum(shape)] if is_matrix else shape, generator=generator)
    random = (random / math.sqrt(shape[-1])).to(getattr(torch, value.dtype))
    return random.as_strided(shape, (1, 1)) if is_matrix else random


def _token_tables(program: Program) -> list[Node]:
    """Return the tables that are read at the tokens."""
    tokens = placeholders(program).get("tokens")
    if tokens is None:
        return []
    readers = [user for user in tokens.users if is_call(user, aten.embedding)]
    return [operand(user) for user in readers if user.args[1] is tokens]
