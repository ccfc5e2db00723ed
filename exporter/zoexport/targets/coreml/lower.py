"""Lowering to Core ML: one multifunction package, a function for each stage forward and backward."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import coremltools as ct
from coremltools.converters.mil.mil import Function
from coremltools.converters.mil.mil import Program as Package

from zoexport.core.errors import LoweringError, first_line
from zoexport.core.graph import LayerGraph, TrainingGraph
from zoexport.core.progress import Progress
from zoexport.core.target import Lowered
from zoexport.ir.graphs import (
    copy_graph,
    copy_program,
    identifier,
)
from zoexport.ir.noise import without_noise
from zoexport.targets.cached_attention import write_cached_attention
from zoexport.targets.coreml.filling import Converted, PackageFiller
from zoexport.targets.coreml.functions import FunctionBuilder
from zoexport.targets.coreml.parts import MINIMUM_OS, Part, packing_of, parts_of, stage_parts
from zoexport.targets.coreml.small_slots import scale_small_slots
from zoexport.targets.coreml.values import FP16, FP32
from zoexport.targets.coreml.weights import Weights
from zoexport.targets.entries import program_entry
from zoexport.targets.kinks import WIDE, has_kink

PACKAGE = "model.mlpackage"
SPECIFICATION = f"{PACKAGE}/Data/com.apple.CoreML/model.mlmodel"
_NOTE = "A Core ML package for iOS 18 and macOS 15; compared op by op by an evaluator, and not run by Core ML"


def lower_coreml(graph: TrainingGraph, folder: Path, progress: Progress, *, half: bool) -> Lowered:
    """Lower every stage, or every whole program, of ``graph`` into the package; rows have the longest length.

    Stages of the bundle name their own programs and bind slots alone.

    Raises:
        LoweringError: an operator that has no form in Core ML, or coremltools refused the package.
    """
    graph = copy_graph(graph)
    parts = parts_of(graph)
    narrow = {part.like: half and not has_kink(part.program) for part in parts}
    package = folder / PACKAGE
    converted = _convert(parts, narrow, package, progress)
    if len(converted) < len(parts):
        filler = PackageFiller(package)
        _fill(filler, parts, narrow, converted, progress)
        filler.save()
    entries = [program_entry(part.program, SPECIFICATION) for part in parts]
    wide = half and not all(narrow.values())
    return Lowered(
        "coreml",
        graph,
        entries,
        packing=packing_of(graph, "fp16" if half else "fp32"),
        notes=[_NOTE, *([WIDE] if wide else [])],
        minimum_os=MINIMUM_OS,
        tools=("coremltools",),
    )


def lower_generating(
    graph: LayerGraph, folder: Path, progress: Progress, *, half: bool, staged: bool
) -> Lowered:
    """Add generation stages for each length to the package of ``lower_coreml``; weights are there.

    Args:
        half: whether the package uses fp16 if possible. staged: whether it has stage functions.

    Raises:
        LoweringError: as ``lower_coreml``.
    """
    graph = copy_graph(graph)
    # Use the types of the training functions: scales and other constants share them.
    wide = {name for name, program in graph.programs.items() if has_kink(program)}
    wide = {*graph.programs} if wide and not staged else wide
    for program in graph.programs.values():
        write_cached_attention(program)
        without_noise(program)
    parts = stage_parts(graph, prefix="generate.")
    narrow = {part.like: half and part.like not in wide for part in parts}
    with tempfile.TemporaryDirectory(dir=folder) as own:
        package = Path(own) / PACKAGE
        converted = _convert(parts, narrow, package, progress)
        filler = PackageFiller(folder / PACKAGE)
        filler.merge(package)
    _fill(filler, parts, narrow, converted, progress)
    filler.save()
    return Lowered("coreml", graph, [program_entry(part.program, SPECIFICATION) for part in parts])


def _fill(
    filler: PackageFiller,
    parts: Sequence[Part],
    narrow: Mapping[str, bool],
    converted: Mapping[str, Converted],
    progress: Progress,
) -> None:
    """Add the functions that are like converted ones."""
    for number, part in enumerate(parts):
        function = identifier(part.program.name)
        if function != converted[part.like].name:
            progress("filling in the layers' weights", number / len(parts))
            filler.add(function, converted[part.like], _weights(part, narrow[part.like]))


def _convert(
    parts: Sequence[Part], narrow: Mapping[str, bool], package: Path, progress: Progress
) -> dict[str, Converted]:
    """Write the package with the first function of each kind; returns these by what they are like."""
    first: dict[str, Part] = {}
    for part in parts:
        first.setdefault(part.like, part)
    converted, functions = {}, {}
    for number, (like, part) in enumerate(first.items()):
        progress("building functions", number / len(first))
        weights = _weights(part, narrow[like])
        program = copy_program(part.program, part.program.name)
        if narrow[like]:
            scale_small_slots(program)
        builder = FunctionBuilder(program, weights)
        name = identifier(part.program.name)
        functions[name] = builder.build()
        converted[like] = Converted(name, builder.places)
    progress("writing the package", None)
    try:
        write_package(package, functions)
    except Exception as error:
        raise LoweringError(
            "writing the Core ML package",
            found=f"{type(error).__name__}: {first_line(error)}",
            expected="a package that coremltools can write",
            fix="Report the model's architecture and the settings.",
        ) from error
    return converted


def _weights(part: Part, narrow: bool) -> Weights:
    return Weights(part.weights(), part.names, FP16 if narrow else FP32)


def write_package(path: Path, functions: Mapping[str, Function]) -> None:
    """Write functions as they were built: without coremltools' passes nothing is folded, fused or stored twice."""
    package = Package()
    for name, function in functions.items():
        package.add_function(name, function)
    package.default_function_name = next(iter(functions))
    package.export_as_multifunction = len(functions) > 1
    # Its progress bars would stand among our own.
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        model = ct.convert(
            package,
            source="milinternal",
            convert_to="mlprogram",
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT32,
            pass_pipeline=ct.PassPipeline.EMPTY,
            skip_model_load=True,
        )
    model.save(str(path))
