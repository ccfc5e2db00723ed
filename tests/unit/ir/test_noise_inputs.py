"""Zeroth-order programs that take their noise as inputs, against those that make it."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from tests.support.programs import same
from tests.unit.methods.test_methods_interpreted import PENDING, QUERIES, STEP, build
from zoexport.core import rng
from zoexport.core.graph import Program, Slot, TrainingGraph, Value
from zoexport.ir.graphs import (
    copy_program,
    identifier,
    is_call,
    outputs,
    placeholders,
    set_outputs,
    shape_of,
    zo,
)
from zoexport.ir.interpret import interpret
from zoexport.ir.noise import take_noise

METHODS = ("prge", "mezo", "fzoo")
SEED, QUERY = (1 << 40) + 7, 1
Tensors = dict[str, torch.Tensor]


@functools.cache
def made(method: str) -> tuple[TrainingGraph, Program, Tensors]:
    """A graph whose ``train`` gives the perturbed copies too, that program with noise as inputs, and the inputs."""
    graph, _, inputs = build("llama", method, weights="fp32", activations="fp32")
    train = with_copies(graph.programs["train"])
    rewritten = copy_program(train, "train")
    take_noise(graph, rewritten)
    inputs |= {"seed": torch.tensor([SEED]), "query": torch.tensor([QUERY])}
    inputs["sign"] = torch.tensor([-1.0])
    return dataclasses.replace(graph, programs={"train": train}), rewritten, inputs


def with_copies(program: Program) -> Program:
    copied = copy_program(program, program.name)
    named = [(value, outputs(copied)[value.name]) for value in copied.outputs]
    for node in copied.module.graph.nodes:
        if is_call(node, zo.zo_perturb, zo.zo_perturb_signs, zo.zo_perturb_one):
            named.append((Value(f"copies.{node.name}", "copies", "float32", shape_of(node)), node))
    set_outputs(copied, named)
    return copied


def noise(method: str, slot: Slot, step: int, queries: range) -> torch.Tensor:
    """z of a slot, (queries, *slot)."""
    count = torch.Size(slot.shape).numel()
    make = rng.signs if method == "fzoo" else rng.normals
    rows = [make(SEED, slot.tensor_id, query, step, count) for query in queries]
    return torch.stack([torch.from_numpy(row).reshape(slot.shape) for row in rows])


def noise_inputs(graph: TrainingGraph, method: str) -> Tensors:
    """The noise of the step before and of this one, as a session gives it."""
    trained = [slot for slot in graph.slots if slot.name.startswith("lora_B")]
    every = range(QUERIES)
    chosen = range(QUERY, QUERY + 1) if method == "mezo" else every
    found = {
        f"previous_noise.{slot.name}": noise(method, slot, STEP - 1, every) for slot in trained
    }
    return found | {f"noise.{slot.name}": noise(method, slot, STEP, chosen) for slot in trained}


def run(graph: TrainingGraph, program: Program, inputs: Tensors) -> Tensors:
    return interpret(dataclasses.replace(graph, programs={"train": program}), "train", inputs)


@pytest.mark.parametrize("method", METHODS)
def test_the_bits_are_those_of_the_operators(method: str) -> None:
    graph, rewritten, inputs = made(method)
    expected = interpret(graph, "train", inputs)
    found = run(graph, rewritten, inputs | noise_inputs(graph, method))
    assert found.keys() == expected.keys()
    exact = [name for name in expected if name.startswith(("lora_B", "copies."))]
    assert len(exact) == 2 * sum(slot.name.startswith("lora_B") for slot in graph.slots)
    for name in exact:
        assert same(found[name], expected[name]), name
    torch.testing.assert_close(
        found["label_logprobs"], expected["label_logprobs"], rtol=1e-6, atol=1e-6
    )
    assert not any(torch.equal(found[name], inputs[name]) for name in found if name in inputs)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_pending_leaves_the_state_as_it_is(method: str) -> None:
    graph, rewritten, inputs = made(method)
    masters = {name for name in inputs if name.startswith("lora_B")}
    zeros = {name: -0.0 * value.abs() for name, value in inputs.items() if name in masters}
    given = noise_inputs(graph, method)
    for name, value in given.items():
        if name.startswith("previous_noise."):
            given[name] = torch.zeros_like(value)
    gradients = {"projected_gradients": torch.zeros(len(PENDING))}
    for state in ({name: inputs[name] for name in masters}, zeros):
        found = run(graph, rewritten, {**inputs, **given, **gradients, **state})
        assert all(same(found[name], state[name]) for name in masters)
    assert all(torch.signbit(zeros[name]).all() for name in masters)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_left_of_the_generator(method: str) -> None:
    graph, rewritten, _ = made(method)
    calls = [node for node in rewritten.module.graph.nodes if node.op == "call_function"]
    assert not [node for node in calls if is_call(node, zo.zo_update, zo.zo_update_signs)]
    assert not [node for node in calls if is_call(node, zo.zo_perturb, zo.zo_perturb_signs)]
    roles = {value.role for value in rewritten.inputs}
    assert not roles & {"seed", "step", "query"}
    assert ("sign" in roles) == (method == "mezo")
    # The program that it was made of is as it was.
    assert "seed" in {value.role for value in graph.programs["train"].inputs}


@pytest.mark.parametrize("method", METHODS)
def test_inputs_are_the_placeholders(method: str) -> None:
    graph, rewritten, _ = made(method)
    rewritten.module.graph.lint()
    nodes = placeholders(rewritten)
    assert len({value.name for value in rewritten.inputs}) == len(rewritten.inputs)
    added = [value for value in rewritten.inputs if value.role in ("noise", "previous_noise")]
    given = noise_inputs(graph, method)
    assert {value.name for value in added} == given.keys()
    for value in added:
        node = nodes[value.name]
        assert node.target == identifier(value.name) and node.users
        assert shape_of(node) == value.shape == tuple(given[value.name].shape)
        assert node.meta["val"].dtype == torch.float32


def test_a_program_without_noise_stays_as_it_is() -> None:
    graph, _, _ = build("llama", "prge", weights="fp32", activations="fp32")
    program = graph.programs["evaluate"]
    before = (list(program.inputs), str(program.module.graph))
    take_noise(graph, program)
    assert (program.inputs, str(program.module.graph)) == before
