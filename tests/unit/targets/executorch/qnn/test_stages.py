"""Stages in the form that the NPU takes: the numbers of the programs they come from, with the weights inside."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.fx import Interpreter, Node

from tests.support.splits import arguments, difference, tiny_graph
from zoexport.core.graph import Program, Stage, TrainingGraph
from zoexport.ir.graphs import aten, is_call, zo
from zoexport.ir.lengths import longest_rows_alone
from zoexport.targets.executorch.qnn.stages import stage_programs


def graph_of(name: str, weights: str) -> TrainingGraph:
    """A tiny model's graph with the programs for its longest rows alone."""
    shared, _ = tiny_graph(name, target="android-npu", weights=weights)
    graph = dataclasses.replace(shared)
    longest_rows_alone(graph)
    return graph


def of(graph: TrainingGraph, stage: Stage) -> tuple[Stage, list[tuple[Program, dict[str, Tensor]]]]:
    """The stage's own programs."""
    slots = {slot.name for slot in graph.slots}
    values = {name: graph.weights[name] for name in stage.bind.values() if name not in slots}
    return stage_programs(graph, stage, values)


def given(graph: TrainingGraph, stage: Stage, program: Program) -> list[Tensor]:
    """Inputs of one of the graph's programs as ``stage`` binds them."""
    return arguments(dataclasses.replace(graph, stages=[stage]), program)


def with_weights(
    program: Program, weights: dict[str, Tensor], inputs: dict[str, Tensor]
) -> list[Tensor]:
    """Inputs of a stage's own program."""
    return [
        weights[value.name] if value.role == "weight" else inputs[value.name]
        for value in program.inputs
    ]


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("llama", "int4"),
        ("gemma3", "int8"),
        ("gpt2", "int4"),
        ("falcon", "fp32"),
    ],
)
def test_a_stage_says_what_its_programs_said(name: str, weights: str) -> None:
    graph = graph_of(name, weights)
    assert {program.length for program in graph.programs.values()} == {None, 48}
    for stage in graph.stages[1:]:
        own, programs = of(graph, stage)
        slots = {slot.name for slot in graph.slots}
        assert {*own.bind.values()} <= slots
        assert (own.forward, own.backward) == (stage.name, f"{stage.name}.backward")
        assert [program.family for program, _ in programs] == [own.forward, own.backward]
        for (made, constants), family in zip(
            programs, (stage.forward, stage.backward), strict=True
        ):
            program = next(p for p in graph.programs.values() if p.family == family)
            inputs = given(graph, stage, program)
            names = [value.name for value in program.inputs]
            expected = program.module(*inputs)
            found = made.module(
                *with_weights(made, constants, dict(zip(names, inputs, strict=True)))
            )
            assert [(v.name, v.role) for v in made.outputs] == [
                (v.name, v.role) for v in program.outputs
            ]
            for value, ours, theirs in zip(made.outputs, found, expected, strict=True):
                assert ours.shape == theirs.shape
                # The tanh form of GELU's error function, and squares that norms take in another order.
                bound = 5e-4 if name == "falcon" else 1e-5
                assert difference(ours, theirs) < bound, (made.name, value.name)


def test_nothing_is_left_that_the_htp_lacks_or_computes_badly() -> None:
    lacking = (
        *(zo.linear_int4, zo.linear_int4_input_gradient, zo.dequantize_int4),
        *(aten.slice_scatter, aten.index_put, aten.erf, aten.native_layer_norm),
    )
    for name, weights in (("llama", "int4"), ("gpt2", "int4"), ("falcon", "fp32")):
        graph = graph_of(name, weights)
        for program, _ in of(graph, graph.stages[1])[1]:
            nodes = list(program.module.graph.nodes)
            assert not [node for node in nodes if is_call(node, *lacking)]
            assert not [node for node in nodes if is_call(node, aten.rsqrt) and len(node.users) > 1]
            sigmoids = [node for node in nodes if is_call(node, aten.sigmoid)]
            for user in (user for node in sigmoids for user in node.users):
                assert is_call(user, aten.mul) and user.args[0] is user.args[1].args[0]


class Rounded(Interpreter):
    """A program whose results are rounded to fp16, but for those of zoexport's operators, which the CPU computes."""

    def run_node(self, n: Node) -> object:
        """The node's result, rounded."""
        result = super().run_node(n)
        ours = n.op != "call_function" or getattr(n.target, "namespace", "") == "zoexport"
        return result if ours or not isinstance(result, Tensor) else result.half().float()


@pytest.mark.parametrize("size", [1.0, 1e-8, 1e6])
def test_gradients_of_every_size_come_out_of_fp16(size: float) -> None:
    graph = graph_of("llama", "int4")
    stage = graph.stages[1]
    _, ((_, _), (made, constants)) = of(graph, stage)
    program = next(p for p in graph.programs.values() if p.family == stage.backward)
    inputs = given(graph, stage, program)
    inputs[-1] = inputs[-1] * size
    names = [value.name for value in program.inputs]
    own = with_weights(made, constants, dict(zip(names, inputs, strict=True)))
    for ours, theirs in zip(Rounded(made.module).run(*own), program.module(*inputs), strict=True):
        assert difference(ours / size, theirs / size) < 1e-2


@pytest.mark.parametrize("size", [0.0, 1e-9, 1.0])
def test_gradients_pass_a_small_matrix(size: float) -> None:
    """LoRA's second, which is zero when training begins and the size of an update next."""
    graph = graph_of("llama", "int4")
    stage = graph.stages[1]
    _, ((_, _), (made, constants)) = of(graph, stage)
    program = next(p for p in graph.programs.values() if p.family == stage.backward)
    names = [value.name for value in program.inputs]
    inputs = dict(zip(names, given(graph, stage, program), strict=True))
    second = [name for name in names if name.startswith("lora_B.")]
    for name in second:
        inputs[name] = inputs[name] * size
    expected = program.module(*inputs.values())
    found = Rounded(made.module).run(*with_weights(made, constants, inputs))
    assert second
    for value, ours, theirs in zip(made.outputs, found, expected, strict=True):
        if size == 0 and value.name.startswith("lora_A."):
            assert not ours.any() and not theirs.any()
        else:
            assert difference(ours, theirs) < 1e-2, value.name


def test_no_gradient_is_no_gradient() -> None:
    """Nor of rows of zeros, as padding may be."""
    graph = graph_of("llama", "int4")
    stage = graph.stages[1]
    _, ((_, _), (made, constants)) = of(graph, stage)
    program = next(p for p in graph.programs.values() if p.family == stage.backward)
    inputs = dict(
        zip((value.name for value in program.inputs), given(graph, stage, program), strict=True)
    )
    inputs["hidden"] = torch.zeros_like(inputs["hidden"])
    inputs["output_gradient.hidden"] = torch.zeros_like(inputs["output_gradient.hidden"])
    for result in made.module(*with_weights(made, constants, inputs)):
        assert not result.any() and not result.isnan().any()
