"""Sample inputs: what a program runs on when something about it is measured while compiling."""

from __future__ import annotations

import math

import torch

from zoexport.core import rng
from zoexport.core.graph import Dim, Program, TrainingGraph, Value
from zoexport.ir.graphs import aten, is_call, placeholders, shape_of, zo

_TENSOR_ID = 0x7FFFFFFE
"""The tokens come from the noise specification, at a tensor id that no slot has."""
_LABELS = 64


def sample_inputs(graph: TrainingGraph, program: Program) -> dict[str, torch.Tensor]:
    """Tokens and labels over the whole vocabulary, label positions over the rows, initial state; else zeros."""
    return {value.name: _sample(graph, program, value) for value in program.arguments()}


def _sample(graph: TrainingGraph, program: Program, value: Value) -> torch.Tensor:
    if value.role == "state":
        return graph.initial[value.name]
    shape = [min(size.max, _LABELS) if isinstance(size, Dim) else size for size in value.shape]
    count, dtype = math.prod(shape), getattr(torch, value.dtype)
    tokens = placeholders(program)["tokens"]
    if value.role == "label_positions":
        return torch.arange(count, dtype=dtype) * (math.prod(shape_of(tokens)) // count)
    if value.role not in ("tokens", "label_tokens"):
        return torch.zeros(shape, dtype=dtype)
    casts = [user for user in tokens.users if is_call(user, aten._to_copy)]
    readers = [user for node in (tokens, *casts) for user in node.users]
    tables = [user.args[0] for user in readers if is_call(user, aten.embedding, zo.embedding_int4)]
    vocabulary = min(
        (shape_of(table)[0] for table in tables if isinstance(table, torch.fx.Node)), default=2
    )
    words = rng.words(0, _TENSOR_ID, 0, 0, count).astype("int64")
    return torch.from_numpy(words % vocabulary).to(dtype).reshape(shape)
