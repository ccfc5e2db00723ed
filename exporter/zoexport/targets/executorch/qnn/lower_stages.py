"""Lowering a split graph to the Hexagon NPU: a forward and a backward program for each stage, its weights inside.

What takes tokens (the embedding) stays on the CPU, as ``lower_stages`` has it, over the file of weights. Every other
program is one .pte of its own, so that no more than one stage's weights are ever in memory here; its delegate holds
them in fp16. On the CPU remain the labels' log-probabilities and their gradient, and the scaling of gradients
(``gradients``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from zoexport.core import qnn
from zoexport.core.graph import LayerGraph, Program
from zoexport.core.progress import Progress
from zoexport.core.target import Lowered
from zoexport.ir.capture import quiet
from zoexport.ir.frozen import stage_values
from zoexport.ir.graphs import copy_graph, identifier
from zoexport.ir.lengths import longest_rows_alone
from zoexport.targets.entries import program_entry
from zoexport.targets.executorch.lower_stages import lower_stages
from zoexport.targets.executorch.program_file import FILE, refused, write_programs
from zoexport.targets.executorch.qnn.exported import (
    delegates_of,
    export_program,
    fallback_of,
    products_among,
)
from zoexport.targets.executorch.qnn.lower import OURS, to_edge
from zoexport.targets.executorch.qnn.stages import stage_programs

_METHOD = "forward"


def lower_qnn_stages(
    graph: LayerGraph, soc: str, folder: Path, progress: Progress, prefix: str = ""
) -> Lowered:
    """Lower every stage of ``graph`` into a file of ``folder``, for rows of the longest length alone.

    Files start with ``prefix``.

    Stages of the bundle name their own programs and bind what these still take.

    Raises:
        LoweringError: ExecuTorch or QNN refused a program.
        ZoExportError: QNN's libraries cannot be loaded.
    """
    graph = copy_graph(graph)
    longest_rows_alone(graph)
    first, *others = graph.stages
    on_cpu = {
        name: program
        for name, program in graph.programs.items()
        if program.family in (first.forward, first.backward)
    }
    lowered = [
        lower_stages(dataclasses.replace(graph, programs=on_cpu), folder, progress, prefix + FILE)
    ]
    stages = [first]
    for number, stage in enumerate(others):
        progress(f"lowering to the NPU of {soc}", number / len(others))
        own, programs = stage_programs(graph, stage, stage_values(graph, stage))
        for program, weights in programs:
            file = f"{prefix}{identifier(program.name)}.pte"
            lowered.append(_lower(graph, program, weights, soc, folder, file))
        stages.append(own)
    graph.stages = stages
    return _together(graph, lowered)


def _lower(
    graph: LayerGraph,
    program: Program,
    weights: dict[str, Tensor],
    soc: str,
    folder: Path,
    file: str,
) -> Lowered:
    exported = {_METHOD: export_program(program, weights)}
    try:
        with qnn.lowering(), quiet():
            edge, reasons = to_edge(exported, soc, fp16=True)
            lowered: Any = edge.exported_program(_METHOD)
            delegates, fallback = delegates_of(lowered), fallback_of(lowered)
            executorch = edge.to_executorch()
    except Exception as error:
        raise refused(f"lowering {program.name} to the NPU of {soc}", error) from error
    required, backends = write_programs(executorch, folder, file)
    entry = {**program_entry(program, file), "entry_point": _METHOD}
    why = {operator: reasons[_METHOD].get(operator, OURS) for operator in fallback}
    return Lowered(
        "qnn",
        graph,
        [entry],
        required,
        {program.name: delegates},
        {program.name: fallback},
        {program.name: why},
        {program.name: products_among(fallback)},
        backends,
    )


def _together(graph: LayerGraph, parts: list[Lowered]) -> Lowered:
    return Lowered(
        "qnn",
        graph,
        [entry for part in parts for entry in part.programs],
        _sorted(part.required_ops for part in parts),
        {name: found for part in parts for name, found in part.delegates.items()},
        {name: found for part in parts for name, found in part.fallback_ops.items()},
        {name: found for part in parts for name, found in part.fallback_reasons.items()},
        {name: found for part in parts for name, found in part.products_outside.items()},
        _sorted(part.backends for part in parts),
        packing="fp16",
    )


def _sorted(parts: Iterable[list[str]]) -> list[str]:
    return sorted({name for part in parts for name in part})
