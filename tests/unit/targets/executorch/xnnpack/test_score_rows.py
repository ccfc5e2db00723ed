"""score_rows makes the head and the log-probabilities of its logits one operator, and leaves other heads alone."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

from tests.support.graphs import SEQ, VOCAB, WIDTH, SmallModel, label_inputs, operators
from zoexport.core.types import Program, TrainingGraph
from zoexport.ir.capture import capture
from zoexport.ir.graphs import shape_of
from zoexport.ir.interpret import interpret
from zoexport.passes.bind_rows import bind_rows
from zoexport.passes.cleanup import cleanup
from zoexport.passes.find_linears import find_linears
from zoexport.passes.label_logprobs import label_logprobs
from zoexport.passes.quantize_weights import quantize_weights
from zoexport.targets.executorch.xnnpack.score_rows import score_rows

ROWS = 3
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


class _Added(SmallModel):
    """As with an adapter beside the head."""

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> types.SimpleNamespace:
        hidden = self.body(self.embed(input_ids))
        return types.SimpleNamespace(logits=self.head(hidden) + self.embed(input_ids)[..., :VOCAB])


def _graph(kind: type[SmallModel], weights: str, activations: str) -> TrainingGraph:
    graph = find_linears(cleanup(capture(kind(nn.Linear(WIDTH, WIDTH)).eval(), SEQ)))
    graph = bind_rows(label_logprobs(graph, max_labels=ROWS * SEQ), ROWS)
    if weights != "fp32":
        quantize_weights(graph, weights=weights, activations=activations, group_size=32)
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
    inputs = label_inputs(ROWS)
    before = interpret(graph, "evaluate", inputs)
    program = graph.programs["evaluate"]
    assert _keeps_logits(program)
    score_rows(program)
    assert operators(program)[f"zoexport.{operator}.default"] == 1
    assert not _keeps_logits(program)
    found = interpret(graph, "evaluate", inputs)
    torch.testing.assert_close(found, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "weights", "activations"),
    [
        (_CappedBelow, "fp32", "fp32"),
        (_Added, "int4", "int8"),
        (SmallModel, "int8", "int8"),
    ],
)
def test_other_heads_are_left_alone(kind: type[SmallModel], weights: str, activations: str) -> None:
    graph = _graph(kind, weights, activations)
    before = operators(graph.programs["evaluate"])
    assert operators(score_rows(graph.programs["evaluate"])) == before
