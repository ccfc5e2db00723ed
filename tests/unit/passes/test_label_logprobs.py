"""label_logprobs lets only label rows reach the head, through whatever works on single elements."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

from tests.support.graphs import (
    SEQ,
    VOCAB,
    WIDTH,
    SmallModel,
    label_inputs,
    label_logits,
    label_logprobs_of,
)
from zoexport.ir.capture import capture
from zoexport.ir.graphs import is_call
from zoexport.ir.interpret import interpret
from zoexport.passes.bind_rows import bind_rows
from zoexport.passes.cleanup import cleanup
from zoexport.passes.label_logprobs import label_logprobs

ROWS = 3


class _Capped(SmallModel):
    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> types.SimpleNamespace:
        logits = super().forward(input_ids).logits
        return types.SimpleNamespace(logits=torch.tanh(logits / 3.0) * 3.0)


class _Permuted(SmallModel):
    """Its logits are put together after the head: rows can only be chosen at the end."""

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> types.SimpleNamespace:
        logits = super().forward(input_ids).logits
        return types.SimpleNamespace(logits=torch.cat([logits[..., 1:], logits[..., :1]], -1))


@pytest.mark.parametrize(("kind", "rows_in_head"), [(SmallModel, 1), (_Capped, 1), (_Permuted, 3)])
def test_log_probabilities_and_argmax(kind: type[SmallModel], rows_in_head: int) -> None:
    model = kind(nn.Linear(WIDTH, WIDTH)).eval()
    graph = bind_rows(label_logprobs(cleanup(capture(model, SEQ)), max_labels=ROWS * SEQ), ROWS)
    program = graph.programs["evaluate"]
    heads = [
        node
        for node in program.module.graph.nodes
        if is_call(node, torch.ops.aten.linear) and node.meta["val"].shape[-1] == VOCAB
    ]
    assert [node.meta["val"].shape[0] for node in heads] == [rows_in_head]
    inputs = label_inputs(ROWS)
    outputs = interpret(graph, "evaluate", inputs)
    logits = label_logits(model, inputs)
    torch.testing.assert_close(outputs["label_logprobs"], label_logprobs_of(logits, inputs))
    best = (logits.argmax(-1) == inputs["label_tokens"]).float()[None]
    torch.testing.assert_close(outputs["label_is_argmax"], best, rtol=0, atol=0)
