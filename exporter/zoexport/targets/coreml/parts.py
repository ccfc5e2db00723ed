"""The functions of a Core ML package: programs with their weights inside."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import torch

from zoexport.core.graph import LayerGraph, Program, Stage, TrainingGraph
from zoexport.ir.frozen import stage_values
from zoexport.ir.lengths import close_sizes, longest_rows_alone
from zoexport.ir.noise import take_noise
from zoexport.targets.coreml.chosen_products import write_chosen_products

MINIMUM_OS = {"ios": "18.0", "macos": "15.0"}


@dataclasses.dataclass(frozen=True)
class Part:
    """Specification of one function.

    Attributes:
        program: has numbers as sizes.
        like: name of its program in the graph; parts of one program differ only in their weights.
        names: the model's names of the weight inputs, by their names in the program.
        values: reads the weights, by their names in the model.
    """

    program: Program
    like: str
    names: Mapping[str, str]
    values: Callable[[], Mapping[str, torch.Tensor]]

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the values of the weight inputs, by their names in the program."""
        values = self.values()
        return {local: values[name] for local, name in self.names.items() if name in values}


def parts_of(graph: TrainingGraph) -> list[Part]:
    """The functions that ``graph`` becomes, a stage's one after the other; rows have the longest length.

    Zeroth-order programs take noise as inputs. This function changes ``graph``: its programs, and its stages, which
    name their own programs and bind slots alone.
    """
    if isinstance(graph, LayerGraph):
        longest_rows_alone(graph)
        return stage_parts(graph)
    return _whole(graph)


def packing_of(graph: TrainingGraph, scales: str) -> str:
    """The name of how Core ML stores weights, such as ``coreml-int4-g32-fp16``: an fp16 scale for 32 codes of int4."""
    kind, _, group = graph.packing.removesuffix("/1").partition("-symmetric")
    return scales if kind == "fp32" else f"coreml-{kind}{group}-{scales}"


def _whole(graph: TrainingGraph) -> list[Part]:
    parts = []
    for name, program in graph.programs.items():
        take_noise(graph, program)
        close_sizes(graph, program)
        names = {value.name: value.name for value in program.weights()}
        parts.append(Part(program, name, names, lambda: graph.weights))
    return parts


def stage_parts(graph: LayerGraph, prefix: str = "") -> list[Part]:
    """Return a function for each stage of a split graph and each length that it has programs for.

    ``graph`` is changed to match the bundle, as in :func:`parts_of`; of weights, it binds tables.

    Args:
        prefix: prefix of the functions' names.
    """
    # Values are read on demand; only those of one stage are kept.
    for program in graph.programs.values():
        take_noise(graph, program)
    write_chosen_products(graph)
    programs: dict[str, list[Program]] = {}
    for program in graph.programs.values():
        programs.setdefault(program.called, []).append(program)
    slots = {slot.name for slot in graph.slots}
    stages = list(graph.stages)

    @functools.lru_cache(maxsize=1)
    def values(number: int) -> Mapping[str, torch.Tensor]:
        return stage_values(graph, stages[number])

    parts = []
    for number, stage in enumerate(stages):
        given = {
            value.name
            for program in programs[stage.forward]
            for value in program.inputs
            if value.role == "table"
        }
        own = Stage(
            stage.name,
            f"{prefix}{stage.name}",
            None if stage.backward is None else f"{prefix}{stage.name}.backward",
            {local: name for local, name in stage.bind.items() if name in slots or local in given},
        )
        for family, called in ((stage.forward, own.forward), (stage.backward, own.backward)):
            for program in programs.get(family or "", []):
                assert called is not None
                name = called if program.length is None else f"{called}@{program.length}"
                made = dataclasses.replace(program, name=name, family=called)
                read = functools.partial(values, number)
                parts.append(Part(made, program.name, stage.bind, read))
        graph.stages[number] = own
    parts += [
        Part(program, program.name, {}, dict)
        for program in graph.programs.values()
        if not program.family
    ]
    return parts
