"""rotate_inputs changes no number in float, and makes int8 rounding of rows with outliers finer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.graphs import WIDTH, captured, operators, tokens
from zoexport.core import hadamard
from zoexport.core.types import TrainingGraph
from zoexport.ir.interpret import interpret
from zoexport.methods.reference.quantized import quantize_model
from zoexport.passes.bind_rows import bind_rows
from zoexport.passes.quantize_weights import quantize_weights
from zoexport.passes.rotate_inputs import rotate_inputs, rounding_gains


class _Amplify(nn.Module):
    """Makes the first channel of every row an outlier."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([60.0] + [1.0] * (WIDTH - 1))


class _Outliers(nn.Module):
    """Two layers read rows with an outlier, a third one the sines of their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.amplify = _Amplify()
        self.one = nn.Linear(WIDTH, WIDTH)
        self.two = nn.Linear(WIDTH, WIDTH, bias=False)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.amplify(x)
        return self.last(torch.sin(7 * (self.one(h) + self.two(h))))


class _ReadTwice(_Outliers):
    """The first layer's weight enters an einsum as well."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.einsum("rsd,ed->rse", x, self.one.weight)


def _graph(body: nn.Module, *, tied: bool = False) -> tuple[nn.Module, TrainingGraph]:
    model, graph = captured(body, tied=tied)
    return model, bind_rows(graph, 2)


def _logits(graph: TrainingGraph) -> torch.Tensor:
    return interpret(graph, "forward", {"tokens": tokens(2)})["logits"]


@pytest.mark.parametrize("tied", [False, True])
def test_numbers_stay(tied: bool) -> None:
    model, graph = _graph(_Outliers(), tied=tied)
    expected = model(tokens(2)).logits
    rotate_inputs(graph, measured="forward", weights="int8")
    assert graph.rotated
    torch.testing.assert_close(_logits(graph), expected, rtol=1e-4, atol=1e-5)


def test_only_inputs_with_outliers_are_rotated() -> None:
    _, graph = _graph(_Outliers())
    gains = rounding_gains(graph, graph.programs["forward"], "int8")
    assert gains["body.one.weight"] == gains["body.two.weight"] > 2 > gains["body.last.weight"]
    before = {name: tensor.clone() for name, tensor in graph.weights.items()}
    rotate_inputs(graph, measured="forward", weights="int8")
    assert {"body.one.weight", "body.two.weight"} <= set(graph.rotated)
    for name, tensor in before.items():
        assert torch.equal(graph.weights[name], tensor) == (name not in graph.rotated)
    # Both layers read one rotated row.
    rotations = operators(graph.programs["forward"])["zoexport.rotate_rows.default"]
    assert rotations == len(graph.rotated) - 1


def test_a_tied_weight_gives_back_the_embedding() -> None:
    model, graph = _graph(_Amplify(), tied=True)
    rotate_inputs(graph, measured="forward", weights="int8")
    assert len(graph.rotated) == 1
    # One rotation of what the embedding gives, one of what the head reads.
    assert operators(graph.programs["forward"])["zoexport.rotate_rows.default"] == 2
    torch.testing.assert_close(_logits(graph), model(tokens(2)).logits, rtol=1e-4, atol=1e-4)


def test_a_weight_that_something_else_reads_is_left_alone() -> None:
    _, graph = _graph(_ReadTwice())
    rotate_inputs(graph, measured="forward", weights="int8")
    assert "body.one.weight" not in graph.rotated and "body.two.weight" in graph.rotated


def test_a_width_without_a_block_is_left_alone() -> None:
    _, graph = _graph(nn.Sequential(nn.Linear(WIDTH, 33), nn.Linear(33, WIDTH)))
    rotate_inputs(graph, measured="forward", weights="int8")
    assert "body.1.weight" not in graph.rotated


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_quantized_numbers_are_those_of_the_reference(weights: str) -> None:
    model, graph = _graph(_Outliers(), tied=True)
    rotate_inputs(graph, measured="forward", weights=weights)
    names = list(graph.rotated)
    quantize_weights(graph, weights=weights, activations="int8", group_size=32)
    settings = {"weights": weights, "activations": "int8", "group_size": 32}
    quantize_model(model, settings, names)
    torch.testing.assert_close(_logits(graph), model(tokens(2)).logits, rtol=1e-4, atol=1e-5)


def test_rounding_is_finer() -> None:
    """The other channels of a row with an outlier, which carry what a language model has to say."""
    rows = torch.arange(40 * WIDTH).view(40, WIDTH).mul(0.7).sin()
    rows[:, 0] = 60
    round_rows = torch.ops.zoexport.fake_quantize_int8_rows
    rotated = hadamard.rotate_rows(round_rows(hadamard.rotate_rows(rows)))
    assert 2 * (rotated - rows)[:, 1:].norm() < (round_rows(rows) - rows)[:, 1:].norm()
