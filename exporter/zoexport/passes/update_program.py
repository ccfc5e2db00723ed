"""update_program: the update of a split graph's only slot as a program of its own.

Before, no program updates the slot. After::

    update(master, projected_gradients (q), learning_rate, seed, step) -> master'
        master' = zoexport.zo_update_half(master, g, learning_rate, seed, step, tensor_id)

A session runs it once, before the first stage of a step (docs/architecture.md).
"""

from __future__ import annotations

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph

from zoexport.core.graph import Program, TrainingGraph, Value
from zoexport.core.interpreted import InterpretedGraph
from zoexport.ir.graphs import call, identifier, placeholders, zo

UPDATE = "update"


def update_program(graph: TrainingGraph, queries: int) -> TrainingGraph:
    """Add the program."""
    (slot,) = graph.slots
    state = Value(slot.name, "state", slot.dtype, slot.shape)
    inputs = [
        state,
        Value("projected_gradients", "projected_gradients", "float32", (queries,)),
        Value("learning_rate", "learning_rate", "float32", (1,)),
        Value("seed", "seed", "int64", (1,)),
        Value("step", "step", "int64", (1,)),
    ]
    known = next(iter(placeholders(next(iter(graph.programs.values()))).values()))
    mode = detect_fake_mode(known.meta["val"])
    assert mode is not None
    nodes = Graph()
    taken = []
    for value in inputs:
        node = nodes.placeholder(identifier(value.name))
        with mode:
            node.meta["val"] = torch.empty(value.sizes(), dtype=getattr(torch, value.dtype))
        taken.append(node)
    updated = call(nodes, zo.zo_update_half.default, *taken, slot.tensor_id)
    nodes.output((updated,))
    module = InterpretedGraph(nodes)
    graph.programs[UPDATE] = Program(UPDATE, module, inputs, [state])
    return graph
