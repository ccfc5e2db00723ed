"""perturb_codes: which layers perturb their integers, and which keep what they had."""

from __future__ import annotations

from tests.support.graphs import operators
from tests.support.tiny_models import tiny
from zoexport.compiler.graphs import training_graph
from zoexport.compiler.plan import plan
from zoexport.core.graph import TrainingGraph


def trained(layers: str) -> TrainingGraph:
    """The programs of a model of two equal layers."""
    settings = {
        "max_length": "8",
        "num_queries": "1",
        "weights": "int8",
        "lora.layers_to_transform": layers,
    }
    return training_graph(plan("quzo", "host", settings), tiny("llama"), lambda *_: None)


def products(graph: TrainingGraph, stage: int) -> dict[str, int]:
    """How often the program of a stage calls each product of integers."""
    (program,) = (p for p in graph.programs.values() if p.family == graph.stages[stage].forward)
    return {name: n for name, n in operators(program).items() if "linear_int8" in name}


def test_equal_layers_that_are_all_trained_are_one_program() -> None:
    graph = trained("all")
    assert graph.stages[1].forward == graph.stages[2].forward
    assert products(graph, 1) == {"zoexport.grid_linear_int8.default": 7}


def test_equal_layers_of_which_some_are_trained_are_two() -> None:
    graph = trained("last:1")
    assert graph.stages[1].forward != graph.stages[2].forward
    assert products(graph, 1) == {"zoexport.linear_int8.default": 7}
    assert products(graph, 2) == {"zoexport.grid_linear_int8.default": 7}
    slots = [slot.name for slot in graph.slots if slot.role == "trainable"]
    assert slots and all(name.startswith("model.layers.1.") for name in slots)
