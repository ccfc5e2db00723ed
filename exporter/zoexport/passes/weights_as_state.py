"""weights_as_state: the model's own parameters are trained, in float32 (MeZO; FedSPZO without adapters).

Before, each stage binding frozen tensors::

    layer.0(hidden; norm, W)         weights: norm = layers.0.norm, W = layers.0.W

After, the same calls, with a state slot for each parameter::

    layer.0(hidden; norm, W)         state: norm = layers.0.norm, W = layers.0.W

Left alone: tables made from the configuration (masks, rotary embeddings). A parameter that several stages read, such as
an embedding that is the output head too, is one slot.
"""

from __future__ import annotations

import dataclasses

from zoexport.core.errors import VerifyError
from zoexport.core.graph import LayerGraph, Program, Slot
from zoexport.ir.frozen import values


def weights_as_state(graph: LayerGraph) -> LayerGraph:
    """Make every parameter that a stage reads a trainable state tensor.

    Args:
        graph: split, not quantized. Initial values are read from its ``source`` if it has one.

    Raises:
        VerifyError: a value that is a parameter in one stage and a table in another.
    """
    trained: set[str] = set()
    for program in graph.programs.values():
        trained |= _as_state(graph, program)
    # In the model's order, independent of the order of stages.
    names = [name for name in graph.weights if name in trained]
    read = graph.weights if graph.source is None else values(graph, graph.source, names)
    for number, name in enumerate(names):
        shape = tuple(graph.weights[name].shape)
        graph.slots.append(
            Slot(name, "trainable", "float32", shape, number, name.rpartition(".")[0])
        )
        graph.initial[name] = read[name].detach().float().contiguous()
    for name in names:
        del graph.weights[name]
    graph.parameters -= trained
    return graph


def _as_state(graph: LayerGraph, program: Program) -> set[str]:
    """Turn a program's parameters into state; their names in the model."""
    stages = graph.stages_of(program)
    found: set[str] = set()
    inputs = []
    for value in program.inputs:
        bound = {stage.bind[value.name] for stage in stages} if value.role == "weight" else set()
        parameters = bound & graph.parameters
        if parameters and parameters != bound:
            raise VerifyError(
                f"[weights_as_state] {program.name}, {value.name}",
                found=f"the parameter {min(parameters)}, and in another layer the table {min(bound - parameters)}",
                expected="layers that read a value of one kind",
                fix="Report the model's architecture, or train adapters (train=lora).",
            )
        inputs.append(dataclasses.replace(value, role="state") if parameters else value)
        found |= parameters
    program.inputs = inputs
    return found
