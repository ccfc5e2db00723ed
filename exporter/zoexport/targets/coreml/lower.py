"""Lowering to Core ML: one multifunction package, a function for each stage forward and backward."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import coremltools as ct
import torch
from coremltools.converters.mil.mil import Function
from coremltools.converters.mil.mil import Program as Package

from zoexport.core.errors import LoweringError, first_line
from zoexport.core.types import Lowered, Program, Progress, Stage, TrainingGraph
from zoexport.ir.frozen import stage_values
from zoexport.ir.graphs import aten, copy_program, identifier, is_call
from zoexport.ir.lengths import close_sizes, longest_rows_alone
from zoexport.ir.noise import take_noise
from zoexport.targets.coreml.functions import FunctionBuilder

PACKAGE = "model.mlpackage"
SPECIFICATION = f"{PACKAGE}/Data/com.apple.CoreML/model.mlmodel"
_NOTE = "A Core ML package for iOS 18 and macOS 15; compared op by op by an evaluator, and not run by Core ML"

_WIDE = "Layers with ReLU compute in fp32: rounding across its kink changes gradients by percents"
_KINKS = (aten.relu, aten.leaky_relu, aten.hardtanh, aten.le, aten.gt)


@dataclasses.dataclass(frozen=True)
class _Part:
    """A function to be: a program with the values of its weights, and what these are called in the package."""

    program: Program
    weights: Mapping[str, torch.Tensor]
    names: Mapping[str, str]


def lower_coreml(graph: TrainingGraph, folder: Path, progress: Progress, *, half: bool) -> Lowered:
    """Lower every stage, or every whole program, of ``graph`` into the package; rows have the longest length.

    ``graph`` becomes what the bundle says: its stages name their own programs and bind slots alone.

    Raises:
        LoweringError: an operator that has no form in Core ML, or coremltools refused the package.
    """
    total = 2 * len(graph.stages) if graph.stages else len(graph.programs)
    parts = _stages(graph) if graph.stages else _whole(graph)
    functions = {}
    entries = []
    wide = False
    for number, part in enumerate(parts):
        progress("building functions", number / total)
        name = identifier(part.program.name)
        kinked = has_kink(part.program)
        wide = wide or (half and kinked)
        builder = FunctionBuilder(part.program, part.weights, part.names, half=half and not kinked)
        functions[name] = builder.build()
        entries.append(_entry(part.program, name))
    progress("writing the package", None)
    try:
        write_package(folder / PACKAGE, functions)
    except Exception as error:
        raise LoweringError(
            "writing the Core ML package",
            found=f"{type(error).__name__}: {first_line(error)}",
            expected="a package that coremltools can write",
            fix="Report the model's architecture and the settings.",
        ) from error
    return Lowered(
        "coreml",
        entries,
        required_ops=[],
        delegates={entry["name"]: [] for entry in entries},
        fallback_ops={entry["name"]: {} for entry in entries},
        packing=_packing(graph, half),
        notes=[_NOTE, *([_WIDE] if wide else [])],
        minimum_os={"ios": "18.0", "macos": "15.0"},
        tools=("coremltools",),
    )


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


def has_kink(program: Program) -> bool:
    """Whether a program, or what it is the gradient of, has an operator whose slope jumps."""
    return any(is_call(node, *_KINKS) for node in program.module.graph.nodes)


def _whole(graph: TrainingGraph) -> Iterator[_Part]:
    for name, program in graph.programs.items():
        made = copy_program(program, name)
        take_noise(graph, made)
        close_sizes(graph, made)
        names = [value.name for value in made.weights()]
        yield _Part(made, graph.weights, {name: name for name in names})


def _stages(graph: TrainingGraph) -> Iterator[_Part]:
    """The functions of one stage after another, so that the values of one alone are read at a time."""
    longest_rows_alone(graph)
    programs = {program.family: program for program in graph.programs.values()}
    slots = {slot.name for slot in graph.slots}
    for number, stage in enumerate(graph.stages):
        values = stage_values(graph, stage)
        weights = {local: values[name] for local, name in stage.bind.items() if name in values}
        own = Stage(
            stage.name,
            stage.name,
            None if stage.backward is None else f"{stage.name}.backward",
            {local: name for local, name in stage.bind.items() if name in slots},
        )
        for family, called in ((stage.forward, own.forward), (stage.backward, own.backward)):
            if family is not None and called is not None:
                program = programs[family]
                name = called if program.length is None else f"{called}@{program.length}"
                made = dataclasses.replace(program, name=name, family=called)
                yield _Part(made, weights, stage.bind)
        graph.stages[number] = own


def _entry(program: Program, function: str) -> dict[str, Any]:
    """How a session calls a function."""
    return {
        "name": program.name,
        **({"family": program.family} if program.family else {}),
        **({} if program.length is None else {"length": program.length}),
        "file": SPECIFICATION,
        "method": function,
        "inputs": [value.as_dict() for value in program.arguments()],
        "outputs": [value.as_dict() for value in program.outputs],
    }


def _packing(graph: TrainingGraph, half: bool) -> str:
    """Of what is in the package: ``coreml-int4-g32`` is a code of 4 bits and a scale for each 32 inputs."""
    kind, _, group = graph.packing.removesuffix("/1").partition("-symmetric")
    scales = "fp16" if half else "fp32"
    return scales if kind == "fp32" else f"coreml-{kind}{group}-{scales}"
