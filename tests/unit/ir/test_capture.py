"""Capture: names, tied weights, any number of rows, and models that cannot be captured."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.graphs import SEQ, SmallModel, captured
from tests.support.tiers import slow_architectures
from tests.support.tiny_models import ARCHITECTURES, fixed_tokens, tiny
from zoexport.core.errors import ModelError
from zoexport.ir.capture import capture, position_limit
from zoexport.ir.interpret import interpret
from zoexport.ir.verify import verify


@pytest.mark.parametrize("name", slow_architectures(ARCHITECTURES))
def test_the_program_is_the_model_for_any_number_of_rows(name: str) -> None:
    model = tiny(name)
    graph = capture(model, 24)
    verify(graph)
    for rows in (1, 5):
        x = fixed_tokens(rows, 24)
        with torch.no_grad():
            expected = model(input_ids=x, use_cache=False).logits
        torch.testing.assert_close(interpret(graph, "forward", {"tokens": x})["logits"], expected)


def test_padding_on_the_right_changes_nothing_before_it() -> None:
    model = tiny("gemma3")
    graph = capture(model, 24)
    x = fixed_tokens(2, 24)
    padded = x.clone()
    padded[:, 15:] = 0
    logits, of_padded = (
        interpret(graph, "forward", {"tokens": tokens})["logits"][:, :15] for tokens in (x, padded)
    )
    torch.testing.assert_close(logits, of_padded)


def test_a_tied_weight_is_one_weight() -> None:
    _, graph = captured(nn.Identity(), tied=True)
    assert len(graph.weights) == 1
    _, graph = captured(nn.Identity())
    assert sorted(graph.weights) == ["embed.weight", "head.weight"]


def test_a_sequence_longer_than_the_positions_is_refused() -> None:
    with pytest.raises(ModelError, match="at most the model's 128 positions"):
        capture(tiny("llama"), 129)


def test_a_model_that_export_cannot_take_is_refused() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if float(x.sum()) > 0 else x

    with pytest.raises(ModelError, match=r"torch\.export"):
        capture(SmallModel(Branching()).eval(), SEQ)


def test_rows_of_a_model_whose_positions_begin_after_padding() -> None:
    assert position_limit(tiny("bert")) == 128
    assert position_limit(tiny("roberta")) == 126
    with pytest.raises(ModelError, match="at most the model's 126 positions"):
        capture(tiny("roberta"), 127)
    assert capture(tiny("roberta"), 126).pad_token == 1
