"""differentiate: each backward program against autograd over its forward one, and which stages have one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.graphs import VOCAB, WIDTH, operators
from tests.support.splits import (
    Layer,
    arguments,
    calls,
    difference,
    small,
    state,
    tiny_graph,
)
from zoexport.core.graph import Program, TrainingGraph
from zoexport.ir.interpret import Stages

BODY = [f"body.{number}.linear" for number in range(3)]


def three(targets: list[str], **settings: Any) -> TrainingGraph:
    layers = [Layer(), Layer(), Layer()]
    return small(layers, "differentiate", targets=targets, any_length=False, **settings)[1]


def declared(program: Program) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Name and role of each input that a caller gives, and of each output."""
    given = [(v.name, v.role) for v in program.arguments() if v.role != "state"]
    return given, [(value.name, value.role) for value in program.outputs]


def test_names_and_roles() -> None:
    graph = three(BODY)
    assert calls(graph) == [
        ("embedding", "embedding", None),
        *((f"body.{n}", "layer.0", "layer.0.backward") for n in range(3)),
        ("head", "head", "head.backward"),
    ]
    assert list(graph.programs) == [
        "embedding@13",
        "layer.0@13",
        "head",
        "layer.0.backward@13",
        "head.backward",
    ]
    layer = graph.programs["layer.0.backward@13"]
    assert (layer.family, layer.length) == ("layer.0.backward", 13)
    assert declared(layer) == (
        [("hidden", "activation"), ("output_gradient.hidden", "output_gradient")],
        [
            ("hidden", "input_gradient"),
            ("lora_A.linear", "state_gradient"),
            ("lora_B.linear", "state_gradient"),
        ],
    )
    assert declared(graph.programs["head.backward"]) == (
        [
            ("hidden", "activation"),
            ("label_tokens", "label_tokens"),
            ("label_weights", "label_weights"),
        ],
        [
            ("label_logprobs", "label_logprobs"),
            ("label_is_argmax", "label_is_argmax"),
            ("hidden", "input_gradient"),
        ],
    )


def test_below_the_first_trained_stage_there_is_no_backward() -> None:
    graph = three(BODY[2:])
    assert [stage.backward for stage in graph.stages] == [
        None,
        None,
        None,
        "layer.1.backward",
        "head.backward",
    ]
    assert "layer.0.backward@13" not in graph.programs


def test_an_untrained_stage_above_a_trained_one_passes_gradients() -> None:
    graph = three(BODY[:1])
    assert [stage.backward for stage in graph.stages[1:]] == [
        "layer.0.backward",
        "layer.1.backward",
        "layer.1.backward",
        "head.backward",
    ]
    assert declared(graph.programs["layer.1.backward@13"])[1] == [("hidden", "input_gradient")]


def test_last_layers_of_a_model() -> None:
    graph, _ = tiny_graph("llama", lora__layers_to_transform="last:1")
    assert [stage.backward for stage in graph.stages] == [
        None,
        None,
        "layer.1.backward",
        "head.backward",
    ]
    assert {slot.module.split(".")[2] for slot in graph.slots} == {"1"}


class _Plain(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x)


@pytest.mark.parametrize(("layer", "reads_bias"), [(Layer, True), (_Plain, False)])
def test_what_no_gradient_needs_is_no_input(layer: type[Layer], reads_bias: bool) -> None:
    """The slope of tanh hangs on what goes into it, that of a sum on nothing."""
    graph = small([layer()], "differentiate", targets=BODY[:1], any_length=False)[1]
    names = {value.name for value in graph.programs["layer.0.backward@13"].weights()}
    assert names == {"linear.weight", *(["linear.bias"] if reads_bias else [])}


def check_gradients(graph: TrainingGraph, family: str, length: int) -> None:
    """Compare each result of a family's backward program with autograd over its forward program."""
    forward, backward = (
        graph.programs[f"{name}@{length}"] for name in (family, f"{family}.backward")
    )
    given = arguments(graph, backward)
    by_name = dict(zip((value.name for value in backward.inputs), given, strict=True))
    gradient = by_name.pop("output_gradient.hidden")
    wanted = [value.name for value in backward.outputs]
    found = backward.module(*given)
    names = (value.name for value in forward.inputs)
    inputs = dict(zip(names, arguments(graph, forward), strict=True))
    leaves = {key: inputs[key].detach().requires_grad_() for key in wanted}
    outputs = forward.module(*(leaves.get(key, value) for key, value in inputs.items()))
    expected = torch.autograd.grad(outputs, [leaves[key] for key in wanted], [gradient])
    for key, ours, theirs in zip(wanted, found, expected, strict=True):
        assert theirs.norm() > 1e-3, key
        assert difference(ours, theirs) < 1e-5, key


@pytest.mark.parametrize("weights", ["fp32", "int4"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_every_gradient_is_autograds(name: str, weights: str) -> None:
    graph, _ = tiny_graph(name, weights=weights)
    for stage in graph.stages[1:-1]:
        check_gradients(graph, stage.forward, 32)


def test_quantized_products_stay_products_of_codes() -> None:
    graph, _ = tiny_graph("llama", weights="int4")
    found = operators(graph.programs["layer.0.backward@32"])
    # Not the product whose gradient a residual gives: 7 linear layers, 6 of which are computed again.
    assert found["zoexport.linear_int4.default"] == 6
    assert found["zoexport.linear_int4_input_gradient.default"] == 7
    assert not [name for name in found if "dequantize" in name]


def test_the_heads_gradient_is_that_of_weighted_log_probabilities() -> None:
    graph = three(BODY)
    program = graph.programs["head.backward"]
    count = graph.label_rows
    weight = graph.weights["head.weight"]
    hidden = torch.sin(torch.arange(count * weight.shape[1]).float()).view(count, -1)
    labels = torch.arange(count) * 3 % VOCAB
    weights = torch.linspace(-1, 1, count)
    given = {
        "hidden": hidden,
        "head.weight": weight,
        "label_tokens": labels,
        "label_weights": weights,
    }
    logprobs, is_argmax, gradient = program.module(*(given[value.name] for value in program.inputs))
    leaf = hidden.clone().requires_grad_()
    logits = leaf @ weight.T
    expected = torch.log_softmax(logits, -1).gather(1, labels[:, None])[:, 0]
    (expected * weights).sum().backward()
    torch.testing.assert_close(logprobs, expected.detach())
    torch.testing.assert_close(gradient, leaf.grad)
    assert torch.equal(is_argmax, (logits.argmax(-1) == labels).float())
    assert 0 < is_argmax.sum() < count


def test_stages_leave_out_what_lies_below() -> None:
    graph, _ = tiny_graph("llama", lora__layers_to_transform="last:1")
    _, gradients = Stages(graph, state(graph), 32).gradients(
        torch.arange(64).view(2, 32),
        torch.tensor([3]),
        torch.tensor([4]),
        torch.tensor([1.0]),
    )
    assert set(gradients) == {slot.name for slot in graph.slots}
    assert all(gradient.norm() > 0 for gradient in gradients.values())


class _Convolved(Layer):
    """A short convolution over the tokens, of each channel alone, as LFM2 and Mamba have."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        convolved = self.convolution(self.linear(x).transpose(1, 2))[..., : x.shape[1]]
        return x + convolved.transpose(1, 2)


def test_gradients_through_a_frozen_convolution() -> None:
    _, graph = small([_Convolved()], "differentiate", targets=BODY[:1], any_length=False)
    found = operators(graph.programs["layer.0.backward@13"])
    assert not any("convolution_backward" in name for name in found)
    check_gradients(graph, "layer.0", 13)


class _Chooses(Layer):
    """A layer whose linear part chooses and has no gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(self.linear(x) > 0, x, 2 * x)


def test_what_only_chooses_has_the_gradient_zero() -> None:
    _, graph = small([_Chooses()], "differentiate", targets=BODY[:1], any_length=False)
    program = graph.programs["layer.0.backward@13"]
    values = arguments(graph, program)
    with torch.no_grad():
        found = dict(zip((v.name for v in program.outputs), program.module(*values), strict=True))
    assert found["hidden"].any()
    assert not found["lora_B.linear"].any()


class _Clamped(Layer):
    """Clamps from both sides, whose gradient in PyTorch writes into an operand (Mamba 2's time steps)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.clamp(self.linear(x), -0.5, 0.5)


def test_gradients_through_a_clamp() -> None:
    _, graph = small([_Clamped()], "differentiate", targets=BODY[:1], any_length=False)
    check_gradients(graph, "layer.0", 13)
