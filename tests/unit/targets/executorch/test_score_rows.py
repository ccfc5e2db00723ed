"""score_rows makes the head and the log-probabilities of its logits one operator, and leaves other heads alone."""

from __future__ import annotations

import types
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from tests.support.graphs import VOCAB, SmallModel, operators
from tests.support.splits import LENGTH, Layer, arguments
from zoexport.compiler.plan import plan
from zoexport.core.graph import Program, TrainingGraph
from zoexport.ir.capture import capture
from zoexport.ir.frozen import materialize
from zoexport.ir.graphs import shape_of
from zoexport.methods.split import split_passes
from zoexport.models.weights import LoadedWeights
from zoexport.passes.pipeline import run_passes
from zoexport.targets.executorch.score_rows import score_rows

FUSED = "linear_label_logprobs"


class _Scaled(SmallModel):
    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> types.SimpleNamespace:
        return types.SimpleNamespace(logits=super().forward(input_ids).logits * 3 / 0.5)


class _Capped(SmallModel):
    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> types.SimpleNamespace:
        logits = super().forward(input_ids).logits * 7
        return types.SimpleNamespace(logits=torch.tanh(logits / 3.0) * 3.0)


class _CappedBelow(SmallModel):
    """-3 * tanh(x / 3), which is no cap of its logits."""

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> types.SimpleNamespace:
        logits = super().forward(input_ids).logits
        return types.SimpleNamespace(logits=torch.tanh(logits / 3.0) * -3.0)


def _graph(
    kind: type[SmallModel], weights: str, activations: str, targets: Sequence[str] = ()
) -> TrainingGraph:
    model = kind(nn.Sequential(Layer(), Layer())).eval()
    values = {"max_length": str(LENGTH), "batch_size": "2", "lora.r": "2", "lora.alpha": "4"}
    values |= {"weights": weights, "activations": activations}
    order = split_passes(plan("prge", "host", values).config, [*targets])
    graph = run_passes(capture(model, LENGTH), order, lambda *_: None)
    materialize(graph, LoadedWeights(model))
    return graph


def _keeps_logits(program: Program) -> bool:
    return any(
        isinstance(node.meta.get("val"), torch.Tensor) and shape_of(node)[-1:] == (VOCAB,)
        for node in program.module.graph.nodes
        if node.op == "call_function"
    )


@pytest.mark.parametrize("kind", [SmallModel, _Scaled, _Capped])
@pytest.mark.parametrize(
    ("weights", "activations", "operator"),
    [
        ("fp32", "fp32", FUSED),
        ("int4", "fp32", f"{FUSED}_int4"),
        ("int4", "int8", f"rounded_{FUSED}_int4"),
    ],
)
def test_no_logits_are_kept(
    kind: type[SmallModel], weights: str, activations: str, operator: str
) -> None:
    graph = _graph(kind, weights, activations)
    program = graph.programs["head"]
    given = [
        value % VOCAB if value.dtype == torch.int64 else value
        for value in arguments(graph, program)
    ]
    before = program.module(*given)
    assert _keeps_logits(program)
    score_rows(program)
    assert operators(program)[f"zoexport.{operator}.default"] == 1
    assert not _keeps_logits(program)
    torch.testing.assert_close(program.module(*given), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "weights", "targets"),
    [(_CappedBelow, "fp32", ()), (SmallModel, "int4", ("head",)), (SmallModel, "int8", ())],
)
def test_other_heads_are_left_alone(
    kind: type[SmallModel], weights: str, targets: tuple[str, ...]
) -> None:
    """A cap from below, an adapter beside the head, and weights of int8."""
    head = _graph(kind, weights, "fp32", targets).programs["head"]
    before = operators(head)
    assert operators(score_rows(head)) == before
