"""Lowering to Core ML: one multifunction package, a function for each stage forward and backward."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
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
from zoexport.targets.coreml.filling import Converted, PackageFiller
from zoexport.targets.coreml.functions import FunctionBuilder
from zoexport.targets.coreml.values import FP16, FP32
from zoexport.targets.coreml.weights import Weights

PACKAGE = "model.mlpackage"
SPECIFICATION = f"{PACKAGE}/Data/com.apple.CoreML/model.mlmodel"
_NOTE = "A Core ML package for iOS 18 and macOS 15; compared op by op by an evaluator, and not run by Core ML"

_WIDE = "Layers with ReLU compute in fp32: rounding across its kink changes gradients by percents"
_KINKS = (aten.relu, aten.leaky_relu, aten.hardtanh, aten.le, aten.gt)


@dataclasses.dataclass(frozen=True)
class _Part:
    """A function to be.

    Attributes:
        program: with numbers for sizes.
        like: the program of the graph that it is; parts of one are alike but for their weights.
        names: what its weights are called in the package.
        values: gives their values, by the same names.
    """

    program: Program
    like: str
    names: Mapping[str, str]
    values: Callable[[], Mapping[str, torch.Tensor]]

    @property
    def function(self) -> str:
        return identifier(self.program.name)

    def weights(self, half: bool) -> Weights:
        values = self.values()
        given = {local: values[name] for local, name in self.names.items() if name in values}
        return Weights(given, self.names, FP16 if half else FP32)


def lower_coreml(graph: TrainingGraph, folder: Path, progress: Progress, *, half: bool) -> Lowered:
    """Lower every stage, or every whole program, of ``graph`` into the package; rows have the longest length.

    ``graph`` becomes what the bundle says: its stages name their own programs and bind slots alone.

    Raises:
        LoweringError: an operator that has no form in Core ML, or coremltools refused the package.
    """
    parts = _stages(graph) if graph.stages else _whole(graph)
    narrow = {part.like: half and not has_kink(part.program) for part in parts}
    package = folder / PACKAGE
    converted = _convert(parts, narrow, package, progress)
    others = [part for part in parts if part.function != converted[part.like].name]
    if others:
        filler = PackageFiller(package)
        for one in converted.values():
            filler.keep(one)
        for number, part in enumerate(others):
            progress("filling in the layers' weights", number / len(others))
            filler.add(part.function, converted[part.like], part.weights(narrow[part.like]))
        filler.save()
    entries = [_entry(part) for part in parts]
    wide = half and not all(narrow.values())
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


def _convert(
    parts: Sequence[_Part], narrow: Mapping[str, bool], package: Path, progress: Progress
) -> dict[str, Converted]:
    """Write the package with the first function of each kind; returns these by what they are like."""
    first: dict[str, _Part] = {}
    for part in parts:
        first.setdefault(part.like, part)
    converted, functions = {}, {}
    for number, (like, part) in enumerate(first.items()):
        progress("building functions", number / len(first))
        weights = part.weights(narrow[like])
        builder = FunctionBuilder(part.program, weights)
        functions[part.function] = builder.build()
        identities = {place.weight: weights.identity(place.weight) for place in builder.places}
        converted[like] = Converted(part.function, builder.places, identities)
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


def _whole(graph: TrainingGraph) -> list[_Part]:
    parts = []
    for name, program in graph.programs.items():
        made = copy_program(program, name)
        take_noise(graph, made)
        close_sizes(graph, made)
        names = {value.name: value.name for value in made.weights()}
        parts.append(_Part(made, name, names, lambda: graph.weights))
    return parts


def _stages(graph: TrainingGraph) -> list[_Part]:
    """The functions of one stage after another; the values of a stage are read for its own functions alone."""
    longest_rows_alone(graph)
    programs = {program.family: program for program in graph.programs.values()}
    slots = {slot.name for slot in graph.slots}
    stages = list(graph.stages)

    @functools.lru_cache(maxsize=1)
    def values(number: int) -> Mapping[str, torch.Tensor]:
        return stage_values(graph, stages[number])

    parts = []
    for number, stage in enumerate(stages):
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
                read = functools.partial(values, number)
                parts.append(_Part(made, program.name, stage.bind, read))
        graph.stages[number] = own
    return parts


def _entry(part: _Part) -> dict[str, Any]:
    """How a session calls a function."""
    program = part.program
    return {
        "name": program.name,
        **({"family": program.family} if program.family else {}),
        **({} if program.length is None else {"length": program.length}),
        "file": SPECIFICATION,
        "method": part.function,
        "inputs": [value.as_dict() for value in program.arguments()],
        "outputs": [value.as_dict() for value in program.outputs],
    }


def _packing(graph: TrainingGraph, half: bool) -> str:
    """Of what is in the package: ``coreml-int4-g32`` is a code of 4 bits and a scale for each 32 inputs."""
    kind, _, group = graph.packing.removesuffix("/1").partition("-symmetric")
    scales = "fp16" if half else "fp32"
    return scales if kind == "fp32" else f"coreml-{kind}{group}-{scales}"
