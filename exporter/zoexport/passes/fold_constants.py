"""fold_constants: compute once, when compiling, what depends on no input.

Before::

    p = aten.arange(64)
    f = aten.mul(p, inv_freq)
    c = aten.cos(f)
    y = aten.mul(x, c)

After, with ``c`` stored under the name ``constant.<hash>``::

    y = aten.mul(x, constant)

Rotary tables, causal masks and position ids end here. Left alone: weights themselves, results larger than
``_LARGEST`` elements whose inputs are smaller (storing them would cost more than computing them), and what depends on
a weight of ``keep``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import torch
from torch.fx import Node

from zoexport.core.graph import Program, TrainingGraph, Value
from zoexport.ir.graphs import add_input, constant_values, placeholders, remove_unused_weights

_LARGEST = 1 << 22


def fold_constants(
    graph: TrainingGraph, keep: Collection[str] = (), largest: int = 0
) -> TrainingGraph:
    """Apply the rewrite to every program; equal constants are stored once.

    Args:
        keep: names of weights whose values may not be known yet, or differ where the same program runs.
        largest: elements of a result that is stored; more than is stored in any case counts.
    """
    for program in graph.programs.values():
        _fold(graph, program, keep, max(largest, _LARGEST))
    used = {value.name for program in graph.programs.values() for value in program.weights()}
    graph.weights = {name: tensor for name, tensor in graph.weights.items() if name in used}
    return graph


def _fold(graph: TrainingGraph, program: Program, keep: Collection[str], largest: int) -> None:
    names = [value.name for value in program.weights() if value.name not in keep]
    known = {name: graph.weights[name] for name in names}
    values = constant_values(program, known, lambda node: _numel(node) > largest)
    stored = placeholders(program)
    for node, value in values.items():
        if node.op == "placeholder" or not isinstance(value, torch.Tensor):
            continue
        if all(user in values for user in node.users):
            continue
        tensor = value.detach().contiguous()
        name = f"constant.{_digest(tensor)}"
        if name not in stored:
            graph.weights.setdefault(name, tensor.clone())
            dtype = str(tensor.dtype).removeprefix("torch.")
            stored[name] = add_input(program, Value(name, "weight", dtype, tuple(tensor.shape)))
        for user in list(node.users):
            if user not in values:
                user.replace_input_with(node, stored[name])
    remove_unused_weights(program)


def _numel(node: Node) -> int:
    result = node.meta.get("val")
    return result.numel() if isinstance(result, torch.Tensor) else 0


def _digest(tensor: torch.Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(tensor.view(torch.uint8).numpy().tobytes() if tensor.dim() else _scalar(tensor))
    return digest.hexdigest()[:16]


def _scalar(tensor: torch.Tensor) -> bytes:
    return repr(tensor.item()).encode()
