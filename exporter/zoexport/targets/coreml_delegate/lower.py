"""Lowering to ExecuTorch's Core ML delegate: one .pte whose methods are one delegate each.

The delegates of all methods are functions of one Core ML package, which the .pte holds once with every weight once;
a method names its function there. Nothing of it is run while compiling: ExecuTorch's Core ML backend is Apple's alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from zoexport.core.types import Lowered, Progress, TrainingGraph
from zoexport.ir.capture import quiet
from zoexport.ir.graphs import copy_program, identifier
from zoexport.targets.coreml_delegate.rules import write_for_coreml
from zoexport.targets.coreml_parts import MINIMUM_OS, packing_of, parts_of
from zoexport.targets.entries import program_entry
from zoexport.targets.executorch.exported import (
    delegates_of,
    export_program,
    fallback_of,
)
from zoexport.targets.executorch.needed_passes import needed_passes_only
from zoexport.targets.executorch.program_file import FILE, memory_of, refused, write_programs

NOT_RUN = (
    "Core ML delegates of an ExecuTorch program, for iOS 18 and macOS 15; compared op by op by an evaluator, and run "
    "neither by ExecuTorch nor by Core ML"
)


def lower_coreml_delegate(graph: TrainingGraph, folder: Path, progress: Progress) -> Lowered:
    """Lower every stage, or every whole program, of ``graph`` into ``folder/model.pte``; rows have the longest length.

    ``graph`` becomes what the bundle says: its stages name their own programs and bind slots alone.

    Raises:
        LoweringError: ExecuTorch or coremltools refused a program.
    """
    from executorch.exir import EdgeProgramManager

    partitioner = _partitioner()
    edges = {}
    entries = []
    parts = parts_of(graph)
    for number, part in enumerate(parts):
        progress("exporting programs", number / len(parts))
        program = copy_program(part.program, part.program.name)
        weights = write_for_coreml(program, part.weights())
        edges[identifier(program.name)] = _edge_program(
            export_program(program, weights), partitioner
        )
        entries.append(program_entry(program, FILE))
    progress("lowering to Core ML", None)
    try:
        with _silent():
            edge = EdgeProgramManager(edges, compile_config=_edge_config()).to_backend(partitioner)
            lowered = {entry["name"]: edge.exported_program(entry["method"]) for entry in entries}
            delegates = {name: delegates_of(program) for name, program in lowered.items()}
            fallback = {name: fallback_of(program) for name, program in lowered.items()}
            executorch = edge.to_executorch(memory_of(graph))
    except Exception as error:
        raise refused("lowering to Core ML", error) from error
    progress("writing the program file", None)
    required, backends = write_programs(executorch, folder)
    return Lowered(
        "executorch",
        entries,
        required,
        delegates,
        fallback,
        backends=backends,
        packing=packing_of(graph, "fp32"),
        notes=[NOT_RUN],
        minimum_os=MINIMUM_OS,
        tools=("coremltools",),
    )


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep what ExecuTorch and coremltools say, and their progress bars, out of the user's terminal."""
    with quiet(), open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def _partitioner() -> Any:
    """ExecuTorch's: the whole of every program is one delegate, or an error names what is not."""
    import coremltools as ct
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner

    specs = CoreMLBackend.generate_compile_specs(
        minimum_deployment_target=ct.target.iOS18, compute_precision=ct.precision.FLOAT32
    )
    return CoreMLPartitioner(compile_specs=specs, lower_full_graph=True)


def _edge_program(exported: torch.export.ExportedProgram, partitioner: Any) -> Any:
    """A program in the edge dialect, whose operators are left whole where the delegate has them.

    One at a time: ExecuTorch 1.5.1 adds the list of these operators to itself with every program that it converts.

    Raises:
        LoweringError: ExecuTorch refused it.
    """
    from executorch.exir import to_edge

    try:
        # Packages have the names of nodes.
        with _silent(), needed_passes_only([exported], renamed=False):
            kept, _ = partitioner.ops_to_not_decompose(exported)
            return to_edge(exported, compile_config=_edge_config(kept)).exported_program()
    except Exception as error:
        raise refused("lowering to Core ML", error) from error


def _edge_config(kept: Sequence[Any] = ()) -> Any:
    from executorch.exir import EdgeCompileConfig

    return EdgeCompileConfig(
        _check_ir_validity=False, _skip_dim_order=True, preserve_ops=[*dict.fromkeys(kept)]
    )
