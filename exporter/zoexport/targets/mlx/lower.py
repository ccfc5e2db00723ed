"""Lowering to MLX: a file of functions for each family of programs, and one of weights in MLX's layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from zoexport.core.graph import LayerGraph, ModelGraph, Program, Stage, TrainingGraph
from zoexport.core.progress import Progress
from zoexport.core.target import Lowered
from zoexport.ir.graphs import arguments, copy_graph, copy_program, identifier, is_call, zo
from zoexport.ir.lengths import close_sizes, row_lengths
from zoexport.ir.noise import take_noise, without_noise
from zoexport.targets.cached_attention import write_cached_attention
from zoexport.targets.entries import program_entry
from zoexport.targets.mlx.functions import Function, write_functions
from zoexport.targets.mlx.packing import GROUPS, pack

_NOTE = "Functions of MLX {version}; another version may refuse to read them"


def lower_mlx(graph: TrainingGraph, folder: Path, progress: Progress) -> Lowered:
    """Lower every program of ``graph`` into ``folder``.

    Raises:
        LoweringError: an operator that has no form in MLX.
    """
    graph = copy_graph(graph)
    programs = _of_stages(graph) if isinstance(graph, LayerGraph) else _whole(graph)
    entries = []
    for file, functions in _written(programs, folder, "", progress):
        # A whole program's file has a trace for each length, and one entry.
        ends = graph.lengths[0], graph.lengths[-1]
        whole = isinstance(graph, ModelGraph)
        lengths = ends if whole and len(graph.lengths) > 1 else None
        entries += [
            program_entry(function.program, file, function.inputs, lengths=lengths)
            for function in (functions[-1:] if whole else functions)
        ]
    _store_packed(graph)
    return Lowered(
        "mlx",
        graph,
        entries,
        packing=_packing(graph),
        notes=[_NOTE.format(version=version("mlx"))],
        tools=("mlx",),
        pack=pack,
    )


def lower_generating(graph: LayerGraph, folder: Path, progress: Progress) -> Lowered:
    """Lower the programs that generate into ``folder``, with a trace for each length in the file of a family.

    Raises:
        LoweringError: an operator that has no form in MLX.
    """
    graph = copy_graph(graph)
    for program in graph.programs.values():
        write_cached_attention(program)
        without_noise(program)
        _unperturbed_integers(program)
    entries = [
        program_entry(function.program, file, function.inputs)
        for file, functions in _written(graph.programs.values(), folder, "generate_", progress)
        for function in functions
    ]
    _store_packed(graph)
    return Lowered("mlx", graph, entries)


def _unperturbed_integers(program: Program) -> None:
    """Have products of trained integers draw nothing: no queries."""
    for node in program.module.graph.nodes:
        if is_call(node, zo.grid_linear_int4, zo.grid_linear_int8):
            node.args = (*arguments(node)[:-1], 0)


def _written(
    programs: Iterable[Program], folder: Path, prefix: str, progress: Progress
) -> Iterator[tuple[str, list[Function]]]:
    """Write programs by family, each to a file of its own; the file's name and its functions."""
    families: dict[str, list[Function]] = {}
    for program in programs:
        families.setdefault(program.called, []).append(Function(program))
    for number, (family, functions) in enumerate(families.items()):
        progress("tracing functions", number / len(families))
        file = f"{prefix}{identifier(family)}.mlxfn"
        write_functions(folder / file, functions)
        yield file, functions


def _of_stages(graph: LayerGraph) -> Iterator[Program]:
    """Return the programs, with noise as an input."""
    for program in graph.programs.values():
        take_noise(graph, program)
        yield program


def _whole(graph: TrainingGraph) -> Iterator[Program]:
    """The programs of a whole model for each length, the longest last, with noise as an input."""
    graph.lengths = row_lengths(graph.max_length) if graph.any_length else [graph.max_length]
    for name, program in graph.programs.items():
        for length in graph.lengths:
            made = copy_program(program, name)
            take_noise(graph, made)
            close_sizes(graph, made, length)
            yield made


def _store_packed(graph: TrainingGraph) -> None:
    """State weights as they are stored; in a whole graph they have values, which are packed here."""
    for name, tensor in graph.weights.items():
        if tensor.dtype == torch.bool:
            graph.weights[name] = tensor.to(torch.uint8)
    for name in [name for name in graph.weights if name.endswith(".codes")]:
        weight = name.removesuffix(".codes")
        parts = pack(graph.weights[name], graph.weights[f"{weight}.scales"])
        graph.weights |= {f"{weight}.{part}": tensor for part, tensor in parts.items()}
        if isinstance(graph, LayerGraph):
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
