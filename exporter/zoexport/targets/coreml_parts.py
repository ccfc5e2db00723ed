"""What Core ML is given, whichever engine calls it: programs with their weights inside, and what a manifest says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import torch

from zoexport.core.types import Program, Stage, TrainingGraph
from zoexport.ir.frozen import stage_values
from zoexport.ir.graphs import copy_program
from zoexport.ir.lengths import close_sizes, longest_rows_alone
from zoexport.ir.noise import take_noise

MINIMUM_OS = {"ios": "18.0", "macos": "15.0"}


@dataclasses.dataclass(frozen=True)
class Part:
    """A function to be.

    Attributes:
        program: with numbers for sizes.
        weights: values of its weight inputs by the names in ``names``.
        names: what the weight inputs are called in the model, by their names in the program.
    """

    program: Program
    weights: Mapping[str, torch.Tensor]
    names: Mapping[str, str]


def parts_of(graph: TrainingGraph) -> tuple[int, Iterator[Part]]:
    """How many functions ``graph`` becomes, and each of them when it is asked for; rows have the longest length.

    Zeroth-order programs take noise as inputs. ``graph`` becomes what the bundle says: its stages name their own
    programs and bind slots alone.
    """
    if graph.stages:
        return 2 * len(graph.stages), _stages(graph)
    return len(graph.programs), _whole(graph)


def packing_of(graph: TrainingGraph, scales: str) -> str:
    """Of what Core ML stores: ``coreml-int4-g32-fp16`` is a code of 4 bits, and a scale of fp16 for each 32 inputs."""
    kind, _, group = graph.packing.removesuffix("/1").partition("-symmetric")
    return scales if kind == "fp32" else f"coreml-{kind}{group}-{scales}"


def _whole(graph: TrainingGraph) -> Iterator[Part]:
    for name, program in graph.programs.items():
        made = copy_program(program, name)
        take_noise(graph, made)
        close_sizes(graph, made)
        names = [value.name for value in made.weights()]
        yield Part(made, graph.weights, {name: name for name in names})


def _stages(graph: TrainingGraph) -> Iterator[Part]:
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
                yield Part(made, weights, stage.bind)
        graph.stages[number] = own
