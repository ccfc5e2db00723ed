"""One failing graph for each rule, and the message that names the pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.graphs import WIDTH, captured
from tests.support.splits import Layer, small
from zoexport.core.errors import VerifyError
from zoexport.core.graph import Slot, TrainingGraph, Value
from zoexport.core.lora_scaling import LoraScaling
from zoexport.ir.graphs import arguments, aten, copy_program, output_node, placeholders
from zoexport.ir.verify import RULES, verify
from zoexport.passes.bind_rows import bind_rows
from zoexport.passes.dual_forward import dual_forward
from zoexport.passes.lora_inject import lora_inject


def _graph() -> TrainingGraph:
    _, graph = captured(nn.Linear(WIDTH, WIDTH))
    return lora_inject(graph, ["body"], LoraScaling(2, 2), seed=0)


def _replace(values: list[Value], which: str, **changes: Any) -> None:
    place = next(place for place, value in enumerate(values) if value.name == which)
    values[place] = dataclasses.replace(values[place], **changes)


def _undeclared_input(graph: TrainingGraph) -> None:
    graph.programs["forward"].inputs.pop()


def _undeclared_output(graph: TrainingGraph) -> None:
    graph.programs["forward"].outputs.append(Value("more", "logits", "float32", (1,)))


def _same_name(graph: TrainingGraph) -> None:
    _replace(graph.programs["forward"].inputs, "head.weight", name="embed.weight")


def _written(graph: TrainingGraph) -> None:
    nodes = graph.programs["forward"].module.graph
    (logits,) = arguments(output_node(graph.programs["forward"].module))[0]
    with nodes.inserting_after(logits):
        nodes.call_function(aten.relu_.default, (logits,))


def _lost_weight(graph: TrainingGraph) -> None:
    del graph.weights["head.weight"]


def _no_slot(graph: TrainingGraph) -> None:
    graph.slots = [slot for slot in graph.slots if slot.name != "lora_A.body"]


def _no_initial_value(graph: TrainingGraph) -> None:
    del graph.initial["lora_B.body"]


def _state_not_returned(graph: TrainingGraph) -> None:
    dual_forward(graph, 1)
    program = graph.programs["train"]
    program.outputs.pop()
    (returned,) = arguments(output_node(program.module))
    output_node(program.module).args = (returned[:-1],)


def _still_symbolic(graph: TrainingGraph) -> None:
    graph.rows = 2


def _other_shape(graph: TrainingGraph) -> None:
    bind_rows(graph, 2)
    _replace(graph.programs["forward"].inputs, "tokens", shape=(2, 7))


_BREAKERS: dict[str, Callable[[TrainingGraph], None]] = {
    "every placeholder is a declared input": _undeclared_input,
    "every returned value is a declared output": _undeclared_output,
    "names are unique": _same_name,
    "operators give new values": _written,
    "every weight has its tensor": _lost_weight,
    "every state value has its slot": _no_slot,
    "every slot has an initial value": _no_initial_value,
    "train returns every trainable slot": _state_not_returned,
    "sizes are numbers once rows are bound": _still_symbolic,
    "recorded shapes are the declared ones once rows are bound": _other_shape,
}


def _split() -> TrainingGraph:
    names = ["body.0.linear", "body.1.linear"]
    return small([Layer(), Layer()], "score_labels", targets=names, any_length=False)[1]


def _unbound_weight(graph: TrainingGraph) -> None:
    del graph.stages[2].bind["linear.weight"]


def _weight_of_another_shape(graph: TrainingGraph) -> None:
    graph.stages[2].bind["linear.weight"] = "body.1.linear.bias"


def _bound_to_nothing(graph: TrainingGraph) -> None:
    graph.stages[2].bind["linear.weight"] = "body.7.linear.weight"


def _unbound_slot(graph: TrainingGraph) -> None:
    del graph.stages[1].bind["lora_B.linear"]


def _slot_of_another_shape(graph: TrainingGraph) -> None:
    graph.stages[1].bind["lora_B.linear"] = "lora_A.body.0.linear"


def _no_backward_program(graph: TrainingGraph) -> None:
    del graph.programs["layer.0.backward@13"]


def _binds_too_much(graph: TrainingGraph) -> None:
    graph.stages[-1].bind["linear.weight"] = "body.0.linear.weight"


def _gives_no_gradient(graph: TrainingGraph) -> None:
    program = graph.programs["layer.0.backward@13"]
    program.outputs.pop()
    (returned,) = arguments(output_node(program.module))
    output_node(program.module).args = (returned[:-1],)


_SPLIT: dict[str, tuple[Callable[[TrainingGraph], None], str]] = {
    "an unbound weight": (_unbound_weight, "weight 'body.1: linear.weight' has no tensor"),
    "a weight of another shape": (_weight_of_another_shape, "weight 'body.1.linear.bias' is"),
    "bound to nothing": (_bound_to_nothing, "weight 'body.7.linear.weight' has no tensor"),
    "an unbound slot": (_unbound_slot, "state 'body.0: lora_B.linear' has no slot"),
    "a slot of another shape": (_slot_of_another_shape, "state 'lora_A.body.0.linear' differs"),
    "no backward program": (_no_backward_program, "calls 'layer.0.backward', which is no program"),
    "a binding that is not read": (_binds_too_much, "stage 'head' binds 'linear.weight'"),
    "no gradient": (_gives_no_gradient, "gives no gradient of 'lora_B.body.0.linear'"),
}


def test_a_good_split_graph_passes() -> None:
    verify(_split())


@pytest.mark.parametrize("name", _SPLIT)
def test_split_graphs(name: str) -> None:
    breaks, found = _SPLIT[name]
    graph = _split()
    breaks(graph)
    with pytest.raises(VerifyError) as error:
        verify(graph)
    assert found in error.value.found and error.value.expected in RULES


def test_every_rule_has_a_failing_graph() -> None:
    split = {
        "every stage has its programs",
        "stages bind what their programs read",
        "backward programs give the gradients of trained slots",
    }
    assert set(_BREAKERS) | split == set(RULES) and not split & set(_BREAKERS)


def test_a_good_graph_passes() -> None:
    graph = _graph()
    verify(graph)
    dual_forward(graph, 2)
    verify(graph)


@pytest.mark.parametrize("rule", _BREAKERS)
def test_rule(rule: str) -> None:
    graph = _graph()
    graph.provenance = ["first", "second"]
    _BREAKERS[rule](graph)
    with pytest.raises(VerifyError) as error:
        verify(graph)
    assert error.value.expected == rule
    assert error.value.where.startswith("[second] after [first]: program ")


def test_copies_are_independent() -> None:
    program = _graph().programs["forward"]
    copy = copy_program(program, "other")
    node = next(iter(placeholders(copy)["tokens"].users))
    node.target = aten.neg.default
    assert torch.ops.aten.neg.default not in {n.target for n in program.module.graph.nodes}
    assert Slot("a", "frozen", "float32", (1,), 0, "m").as_dict()["shape"] == [1]
