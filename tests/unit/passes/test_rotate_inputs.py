"""rotate_inputs: layers whose inputs gain read rotated rows, which changes no number in float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import nn

from tests.support.graphs import WIDTH, SmallModel, operators
from tests.support.splits import LENGTH, Layer, state
from zoexport.compiler.plan import plan
from zoexport.core import hadamard
from zoexport.core.graph import Measured, Program, TrainingGraph
from zoexport.ir.capture import capture
from zoexport.ir.frozen import materialize
from zoexport.ir.graphs import aten, is_call, operand, placeholders, zo
from zoexport.ir.interpret import Stages
from zoexport.ir.product_ops import rounded_rows
from zoexport.methods.split import split_passes
from zoexport.models.weights import LoadedWeights
from zoexport.passes.pipeline import run_passes

ROWS = 2
TOKENS = (torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) * 7 + 3) % 11


class _Two(nn.Module):
    """Two layers that read the same rows."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, 2 * WIDTH)
        self.two = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.last = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.last(torch.sin(self.one(x)) * self.two(x))


def _model(body: Sequence[nn.Module], *, tied: bool) -> SmallModel:
    """One whose weights int4 holds exactly once they are rotated."""
    model = SmallModel(nn.Sequential(*body), tied=tied).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            codes = (40 * parameter.data).round().clamp(-7, 7)
            codes[:, ::32] = 7
            parameter.data = hadamard.rotate_rows(codes / 32)
    if not tied:
        # It is no layer's weight, and stored as it is.
        model.embed.weight.data = hadamard.rotate_rows(model.embed.weight.data)
    return model


LAYERS = ("body.0.linear", "body.1.last", "body.1.one", "body.1.two", "head")


def _graph(
    model: SmallModel, *targets: str, gains: Mapping[str, float] | None = None, **settings: str
) -> TrainingGraph:
    """What the method makes of the model, but for the rounding of inputs; all layers gain fourfold where not said."""
    shape = {"max_length": str(LENGTH), "batch_size": str(ROWS), "lora.r": "2", "lora.alpha": "4"}
    config = plan("prge", "host", {**shape, **settings}).config
    order = split_passes(config, list(targets))
    order = [step for step in order if step.name != "round_inputs"]
    captured = capture(model, LENGTH)
    names = {name for name, _ in model.named_modules()}
    captured.measured = Measured(gains=dict.fromkeys(names, 4.0) if gains is None else gains)
    graph = run_passes(captured, order, lambda *_: None)
    materialize(graph, LoadedWeights(model))
    return graph


def _program(graph: TrainingGraph, family: str) -> Program:
    return next(program for program in graph.programs.values() if program.called == family)


@pytest.mark.parametrize("tied", [False, True])
def test_numbers_stay(tied: bool) -> None:
    model = _model([Layer(), _Two()], tied=tied)
    graph = _graph(model)
    assert graph.rotated == [f"{name}.weight" for name in LAYERS]
    *_, (hidden,) = Stages(graph, state(graph), LENGTH).forward(TOKENS)
    with torch.no_grad():
        expected = model.body(model.embed(TOKENS))
    torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-5)
    rotations = [
        operators(_program(graph, stage.forward))["zoexport.rotate_rows.default"]
        for stage in graph.stages
    ]
    # A tied table gives its rows turned back; layers that read the same rows share one rotation.
    assert rotations == [int(tied), 1, 2, 1]


def test_adapters_read_the_row_as_it_was() -> None:
    graph = _graph(_model([Layer(), Layer()], tied=False), "body.0.linear", "body.1.linear")
    program = _program(graph, "layer.0")
    hidden = placeholders(program)["hidden"]
    (rotated,) = (node for node in hidden.users if is_call(node, zo.rotate_rows))
    assert [is_call(node, zo.linear_int4) for node in rotated.users] == [True]
    assert any(is_call(node, aten.matmul) and operand(node) is hidden for node in hidden.users)


def test_only_layers_that_gain_are_rotated() -> None:
    gains = {"body.0.linear": 1.9, "body.1.one": 2.1, "body.1.two": 1.0, "head": 3.0}
    graph = _graph(_model([Layer(), _Two()], tied=False), gains=gains)
    assert graph.rotated == ["body.1.one.weight", "head.weight"]


def test_layers_that_share_a_program_are_rotated_alike() -> None:
    """By the geometric mean of what they gain."""
    model = _model([Layer(), Layer()], tied=False)
    both = {"body.0.linear": 8.0, "body.1.linear": 0.6}
    assert _graph(model, gains=both).rotated == ["body.0.linear.weight", "body.1.linear.weight"]
    assert _graph(model, gains={**both, "body.1.linear": 0.4}).rotated == []


def test_gains_are_those_of_inputs_with_outliers() -> None:
    """A channel far above the others, which language models have."""
    rows = torch.arange(40 * WIDTH).view(40, WIDTH).mul(0.7).sin()
    assert hadamard.rotation_gain(rows) < 2
    rows[:, 0] = 60
    assert hadamard.rotation_gain(rows) > 2


@pytest.mark.parametrize("settings", [{"weights": "fp32"}, {"activations": "fp32"}])
def test_what_is_not_rounded_is_not_rotated(settings: dict[str, str]) -> None:
    graph = _graph(_model([Layer(), Layer()], tied=False), **settings)
    assert graph.rotated == [] and "rotate_inputs" not in graph.provenance


def test_only_whole_blocks_can_be_rotated() -> None:
    """Groups of int4 weights are multiples of a block, so every int4 layer has whole ones."""
    assert [width for width in range(1, 100) if hadamard.can_rotate(width)] == [32, 64, 96]


def test_the_rotation_is_its_own_inverse_and_mixes_blocks_alone() -> None:
    rows = torch.arange(3 * 64, dtype=torch.float32).view(3, 64).sin()
    torch.testing.assert_close(hadamard.rotate_rows(hadamard.rotate_rows(rows)), rows)
    one = hadamard.rotate_rows(torch.eye(64))
    torch.testing.assert_close(one, one.T)
    assert torch.equal(one != 0, torch.block_diag(*[torch.ones(32, 32)] * 2) > 0)


def test_rounding_is_finer() -> None:
    """The other channels of a row with an outlier, which carry what a language model has to say."""
    rows = torch.arange(40 * WIDTH).view(40, WIDTH).mul(0.7).sin()
    rows[:, 0] = 60
    rotated = hadamard.rotate_rows(rounded_rows(hadamard.rotate_rows(rows)))
    assert 2 * (rotated - rows)[:, 1:].norm() < (rounded_rows(rows) - rows)[:, 1:].norm()
