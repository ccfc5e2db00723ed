"""Lowering to MLX: a file of functions for each family of programs, and one of weights in MLX's layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from zoexport.core.types import Lowered, Program, Progress, Stage, TrainingGraph
from zoexport.ir.graphs import copy_program, identifier
from zoexport.ir.lengths import close_sizes, row_lengths
from zoexport.ir.noise import take_noise
from zoexport.targets.mlx.functions import Function, write_functions
from zoexport.targets.mlx.packing import GROUPS, pack

_NOTE = "Functions of MLX {version}; another version may refuse to read them"


def lower_mlx(graph: TrainingGraph, folder: Path, progress: Progress) -> Lowered:
    """Lower every program of ``graph`` into ``folder``. Its weights become what the functions read.

    Raises:
        LoweringError: an operator that has no form in MLX.
    """
    for program in graph.programs.values() if graph.stages else ():
        take_noise(graph, program)
    if not graph.stages:
        graph.lengths = row_lengths(graph.seq_len) if graph.any_length else [graph.seq_len]
    programs = graph.programs.values() if graph.stages else _whole(graph)
    families: dict[str, list[Function]] = {}
    for program in programs:
        families.setdefault(program.family or program.name, []).append(Function(program))
    entries = []
    for number, (family, functions) in enumerate(families.items()):
        progress("tracing functions", number / len(families))
        file = f"{identifier(family)}.mlxfn"
        write_functions(folder / file, functions)
        entries += (
            [_entry(function, file) for function in functions]
            if graph.stages
            else [_of_any_length(_entry(functions[-1], file), graph.lengths)]
        )
    _store_packed(graph)
    names = [name for entry in entries for name in _weights(entry)]
    return Lowered(
        "mlx",
        entries,
        required_ops=[],
        delegates={name: [] for name in graph.programs},
        fallback_ops={name: {} for name in graph.programs},
        packing=_packing(graph),
        notes=[_NOTE.format(version=version("mlx"))],
        tools=("mlx",),
        weights=[] if graph.stages else list(dict.fromkeys(names)),
        pack=pack,
    )


def _whole(graph: TrainingGraph) -> Iterator[Program]:
    """The programs of a whole model for each length, the longest last, with noise as an input."""
    for name, program in graph.programs.items():
        for length in graph.lengths:
            made = copy_program(program, name)
            take_noise(graph, made)
            close_sizes(graph, made, length)
            yield made


def _entry(function: Function, file: str) -> dict[str, Any]:
    """How a session calls a function."""
    program = function.program
    return {
        "name": program.name,
        **({"family": program.family} if program.family else {}),
        **({} if program.length is None else {"length": program.length}),
        "file": file,
        "method": identifier(program.name),
        "inputs": [value.as_dict() for value in function.inputs],
        "outputs": [value.as_dict() for value in program.outputs],
    }


def _of_any_length(entry: dict[str, Any], lengths: Sequence[int]) -> dict[str, Any]:
    """The entry of a whole program whose file has a trace for each of ``lengths``."""
    if len(lengths) > 1:
        tokens = next(value for value in entry["inputs"] if value["role"] == "tokens")
        tokens["shape"][1] = {"name": "length", "min": lengths[0], "max": lengths[-1]}
    return entry


def _weights(entry: dict[str, Any]) -> list[str]:
    return [value["name"] for value in entry["inputs"] if value["role"] == "weight"]


def _store_packed(graph: TrainingGraph) -> None:
    """State weights as they are stored; in a whole graph they have values, which are packed here."""
    for name, tensor in graph.weights.items():
        if tensor.dtype == torch.bool:
            graph.weights[name] = tensor.to(torch.uint8)
    for name in [name for name in graph.weights if name.endswith(".codes")]:
        weight = name.removesuffix(".codes")
        parts = pack(graph.weights[name], graph.weights[f"{weight}.scales"])
        graph.weights |= {f"{weight}.{part}": tensor for part, tensor in parts.items()}
        _bind(graph.stages, weight, parts)


def _bind(stages: Sequence[Stage], weight: str, parts: dict[str, torch.Tensor]) -> None:
    """Have the stages that read a weight's codes bind all of its parts."""
    for stage in stages:
        for local in [local for local, name in stage.bind.items() if name == f"{weight}.codes"]:
            prefix = local.removesuffix("codes")
            stage.bind |= {f"{prefix}{part}": f"{weight}.{part}" for part in parts}


def _packing(graph: TrainingGraph) -> str:
    """``int4-symmetric-g32/1`` in MLX's layout is ``mlx-affine-int4-g32``."""
    kind, _, group = graph.packing.removesuffix("/1").partition("-symmetric")
    if kind == "fp32":
        return kind
    return f"mlx-affine-{kind}{group}" if group else f"mlx-affine-{kind}-g{GROUPS[0]}"
