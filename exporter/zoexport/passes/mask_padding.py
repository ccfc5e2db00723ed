"""mask_padding: what hides padding from the layers of an encoder becomes a sum with a row of numbers.

Before, any code of transformers that makes a mask of tokens, such as::

    seen  = aten.index(aten.ne(tokens, pad), [rows, positions])              # (R, 1, 1, n)
    mask  = aten.where(aten.expand(seen, [R, 1, n, n]), 0., -3.4e38)         # (R, 1, n, n)
    s     = aten.add(aten.matmul(q, k), mask)

After::

    numbers = aten.mul(aten._to_copy(aten.eq(tokens, pad), float32), -3.4e38)    # (R, n)
    mask    = aten.expand(aten.view(numbers, [R, 1, 1, n]), [R, 1, n, n])
    s       = aten.add(aten.matmul(q, k), mask)

Nothing of n x n is computed or kept then: an ``expand`` is only another way to read. A mask is found by its values on
trial tokens, not by how it is written. Left alone: causal models, and values that depend on more than tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from zoexport.core.graph import Program, TrainingGraph
from zoexport.ir.graphs import aten, call, placeholders, remove_unused_weights, shape_of

_HIDDEN = -1e4
"""No score that is hidden may be above it."""
_TRIAL_TOKENS = 64


def mask_padding(graph: TrainingGraph) -> TrainingGraph:
    """Rewrite every program of a masked language model; rows are bound and constants folded."""
    if graph.pad_token is not None:
        for program in graph.programs.values():
            _rewrite(graph, program, graph.pad_token)
    return graph


def _rewrite(graph: TrainingGraph, program: Program, pad: int) -> None:
    tokens = placeholders(program)["tokens"]
    trial = _trial(shape_of(tokens), pad)
    values = _of_tokens(graph, program, trial)
    for node, value in values.items():
        lowest = _lowest(value, trial == pad)
        if lowest is not None and any(reader not in values for reader in node.users):
            _replace(program, node, tokens, pad, lowest)
    remove_unused_weights(program)


def _trial(shape: tuple[int, ...], pad: int) -> torch.Tensor:
    """Return trial tokens in different rows; a third of them is padding."""
    tokens = torch.randint(_TRIAL_TOKENS, shape, generator=torch.Generator().manual_seed(0))
    return torch.where(tokens % 3 == 0, pad, tokens)


def _of_tokens(graph: TrainingGraph, program: Program, trial: torch.Tensor) -> dict[Node, Any]:
    """Return the values that tokens and tables decide, on trial tokens."""
    values: dict[Node, Any] = {}
    for value, node in zip(program.inputs, placeholders(program).values(), strict=True):
        if value.role == "tokens":
            values[node] = trial
        elif value.role == "weight" and value.name not in graph.parameters:
            values[node] = graph.weights[value.name]
    for node in program.module.graph.nodes:
        if node.op == "call_function" and values.keys() >= {*node.all_input_nodes}:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: values[arg])
            with torch.no_grad():
                values[node] = node.target(*args, **kwargs)
    return values


def _lowest(value: Any, hidden: torch.Tensor) -> float | None:
    """Return the bias of a mask (R, 1, any, n) for hidden tokens; None if it is no padding mask."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.dim() != 4:
        return None
    rows, length = hidden.shape
    if value.shape[:2] != (rows, 1) or value.shape[-1] != length:
        return None
    lowest = float(value.min())
    expected = hidden[:, None, None, :].float() * lowest
    return lowest if lowest <= _HIDDEN and bool((value == expected).all()) else None


def _replace(program: Program, node: Node, tokens: Node, pad: int, lowest: float) -> None:
    nodes = program.module.graph
    rows, length = shape_of(tokens)
    with nodes.inserting_before(node):
        hidden = call(nodes, aten.eq.Scalar, tokens, pad)
        numbers = call(nodes, aten._to_copy.default, hidden, dtype=torch.float32)
        masked = call(nodes, aten.mul.Tensor, numbers, lowest)
        row = call(nodes, aten.view.default, masked, [rows, 1, 1, length])
        mask = call(nodes, aten.expand.default, row, list(shape_of(node)))
    node.replace_all_uses_with(mask)
