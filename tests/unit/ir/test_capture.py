"""Capture: names, tied weights, any number of rows, and models that cannot be captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.graphs import SEQ, VOCAB, WIDTH, captured
from tests.support.tiers import slow_architectures
from tests.support.tiny_models import ARCHITECTURES, fixed_tokens, from_config, tiny, tiny_config
from zoexport.core.errors import ModelError
from zoexport.ir.capture import capture, capture_limit, position_limit
from zoexport.ir.interpret import interpret
from zoexport.ir.verify import verify

ORIGINAL = 32


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


class DenseExperts(nn.Module):
    """Experts that all run on all tokens, as in Llama 4: a view of a product must be contiguous for all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, WIDTH).repeat(2, 1).view(2, -1, WIDTH)
        made = torch.bmm(tokens, self.weight).view(-1, WIDTH)
        return made.reshape(2, -1, WIDTH).sum(0).view_as(x)


def test_experts_on_all_tokens_are_captured_for_any_rows() -> None:
    model, graph = captured(DenseExperts())
    with torch.no_grad():
        expected = model(fixed_tokens(5, SEQ) % VOCAB).logits
    inputs = {"tokens": fixed_tokens(5, SEQ) % VOCAB}
    torch.testing.assert_close(interpret(graph, "forward", inputs)["logits"], expected)


def test_a_tied_weight_is_one_weight() -> None:
    _, graph = captured(nn.Identity(), tied=True)
    assert len(graph.weights) == 1
    _, graph = captured(nn.Identity())
    assert sorted(graph.weights) == ["embed.weight", "head.weight"]


def _longrope(dimensions: int) -> dict[str, Any]:
    """Return factors of which the long ones differ from the short ones."""
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": ORIGINAL,
        "short_factor": [1.0 + 0.1 * one for one in range(dimensions)],
        "long_factor": [2.0 + 0.5 * one for one in range(dimensions)],
    }


def _by_length(kind: str) -> Any:
    """Return the configuration of a model whose rotary frequencies depend on the length of its rows."""
    if kind == "dynamic":
        rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
        return tiny_config("llama", rope_parameters=rope, max_position_embeddings=40)
    if kind == "longrope":
        changes = {"rope_parameters": _longrope(8), "original_max_position_embeddings": ORIGINAL}
        return tiny_config("phi3", **changes)
    layers = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": _longrope(8),
    }
    return tiny_config("gemma3", rope_parameters=layers)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "longrope of some layers"])
def test_rotary_by_length_is_that_of_short_rows(kind: str) -> None:
    model = from_config(_by_length(kind))
    x = fixed_tokens(2, 24)
    with torch.no_grad():
        expected = model(input_ids=x, use_cache=False).logits
        # Leaves the frequencies of long rows in the model.
        model(input_ids=fixed_tokens(2, 60), use_cache=False)
    for length in (37, 24):
        graph = capture(model, length, max_length=24)
        tokens = torch.zeros(2, length, dtype=torch.int64)
        tokens[:, :24] = x
        found = interpret(graph, "forward", {"tokens": tokens})["logits"][:, :24]
        torch.testing.assert_close(found, expected)
    with torch.no_grad():
        after = model(input_ids=x, use_cache=False).logits
    torch.testing.assert_close(after, expected)


@pytest.mark.parametrize("kind", ["longrope", "longrope of some layers"])
def test_rows_with_the_long_factors_are_refused(kind: str) -> None:
    model = from_config(_by_length(kind))
    assert (position_limit(model), capture_limit(model)) == (ORIGINAL, 128)
    assert capture(model, 37, max_length=ORIGINAL).max_length == ORIGINAL
    with pytest.raises(ModelError, match=r"found 33; expected at most 32 tokens.*longrope"):
        capture(model, 37, max_length=ORIGINAL + 1)


def test_a_sequence_longer_than_the_positions_is_refused() -> None:
    with pytest.raises(ModelError, match="at most the model's 128 positions"):
        capture(tiny("llama"), 129)


class Branching(nn.Module):
    """Choose the operation by a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if float(x.sum()) > 0 else x


class Failing(nn.Module):
    """Raise an error of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError(x.shape)


class ByValue(nn.Module):
    """Keep the positive values only, as a router that gathers the tokens of an expert does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x[x > 0].sum()


class Changing(nn.Module):
    """Count the calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x * self.calls


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (Branching(), "depend on the values of tokens"),
        (ByValue(), "depend on the values of tokens"),
        (Changing(), "changes model.body.calls"),
        (Failing(), r"torch\.export"),
    ],
)
def test_a_model_that_export_cannot_take_is_refused(body: nn.Module, found: str) -> None:
    with pytest.raises(ModelError, match=found):
        captured(body)


def test_rows_of_a_model_whose_positions_begin_after_padding() -> None:
    assert position_limit(tiny("bert")) == 128
    assert position_limit(tiny("roberta")) == 126
    with pytest.raises(ModelError, match="at most the model's 126 positions"):
        capture(tiny("roberta"), 127)
    assert capture(tiny("roberta"), 126).pad_token == 1
