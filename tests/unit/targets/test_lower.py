"""What every target's ``lower`` leaves alone: the graph that it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import tiny
from zoexport.compiler.decoding import generating_graph
from zoexport.compiler.graphs import training_graph
from zoexport.compiler.plan import plan
from zoexport.core.graph import LayerGraph, TrainingGraph
from zoexport.models.weights import LoadedWeights

TARGETS = ("host", "android-gpu", "ios-coreml", "ios-mlx")


def _stated(graph: TrainingGraph) -> dict[str, Any]:
    """What a graph says, in values of its own."""
    weights = {name: (id(tensor), tensor._version) for name, tensor in graph.weights.items()}
    programs = {
        name: (str(program.module.graph), repr(program.inputs), repr(program.outputs))
        for name, program in graph.programs.items()
    }
    stages = repr(graph.stages) if isinstance(graph, LayerGraph) else ""
    lists = (graph.lengths, graph.slots, graph.rotated, graph.quantized, sorted(graph.parameters))
    return {"weights": weights, "programs": programs, "stages": stages, "lists": repr(lists)}


@pytest.mark.parametrize(
    ("target", "settings"),
    [
        *((target, {"method": "mebp"}) for target in TARGETS),
        *((target, {"method": "prge"}) for target in TARGETS),
        *((target, {"method": "mezo", "granularity": "layer"}) for target in TARGETS[2:]),
        *((target, {"method": "quzo"}) for target in TARGETS[:1]),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value.values()),
)
def test_a_graph_stays_as_it_was(target: str, settings: dict[str, Any], tmp_path: Path) -> None:
    method = settings["method"]
    own = {name: value for name, value in settings.items() if name != "method"}
    planned = plan(method, target, {**own, "max_length": 32, "weights": "int8"})
    model = tiny("llama")
    graph = training_graph(planned, model, lambda *_: None, source=LoadedWeights(model))
    before = _stated(graph)
    lowered = planned.target.lower(graph, planned.config, tmp_path, lambda *_: None)
    assert lowered.programs and _stated(graph) == before
    generates = generating_graph(planned, model, lowered.graph, lambda *_: None)
    if isinstance(generates, LayerGraph):
        before = _stated(generates)
        planned.target.lower_generating(generates, planned.config, tmp_path, lambda *_: None)
        assert _stated(generates) == before
