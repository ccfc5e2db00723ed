"""Programs that stages need in several versions: one for each kind of what they bind."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from zoexport.core.graph import LayerGraph, Program, Stage
from zoexport.ir.graphs import copy_program, remove_unused_weights

K = TypeVar("K", bound=Hashable)


def vary(
    graph: LayerGraph,
    kind: Callable[[Program, Stage], K],
    apply: Callable[[Program, K], None],
) -> None:
    """Replace each program of a split graph by one for each kind of its stages, which then bind what that reads.

    Args:
        kind: what a program is to be for a stage. apply: makes a copy of the program that.
    """
    programs: dict[str, Program] = {}
    for family, program in graph.programs.items():
        variants: dict[K, list[Stage]] = {}
        for stage in graph.stages_of(program):
            variants.setdefault(kind(program, stage), []).append(stage)
        for number, (wanted, stages) in enumerate(variants.items()):
            made = copy_program(program, family if len(variants) == 1 else f"{family}.{number}")
            made.family = made.name
            apply(made, wanted)
            remove_unused_weights(made)
            programs[made.name] = made
            read = {value.name for value in made.inputs}
            for stage in stages:
                stage.forward = made.family
                stage.bind = {name: to for name, to in stage.bind.items() if name in read}
    graph.programs = programs
