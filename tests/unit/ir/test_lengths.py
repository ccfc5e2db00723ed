"""Rows of any length: sizes that follow the sequence, and programs at other lengths than the captured one."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import torch
from torch import nn

from tests.support.graphs import VOCAB, SmallModel
from tests.support.tiny_models import fixed_tokens
from tests.unit.methods.test_methods_interpreted import build
from zoexport.core.errors import VerifyError
from zoexport.core.graph import Value
from zoexport.ir.capture import capture
from zoexport.ir.graphs import copy_program, is_call, zo
from zoexport.ir.interpret import interpret
from zoexport.ir.lengths import (
    FixedLength,
    follows,
    marker_prime,
    position_axes,
    row_lengths,
    set_length,
)
from zoexport.passes.bind_rows import bind_rows
from zoexport.passes.check_lengths import check_lengths
from zoexport.passes.cleanup import cleanup
from zoexport.passes.label_logprobs import label_logprobs


@pytest.mark.parametrize(
    ("max_length", "sizes", "limit", "expected"),
    [
        (32, [64, 128, 3], None, 37),
        (37, [64, 128], None, 37),
        (37, [64, 74], None, 41),  # 74 is twice 37
        (2, [8], None, 11),  # numbers of axes and parts are not taken for it
        (32, [0, -1, 64], None, 37),
        (64, [64], 66, None),
        (64, [64], 67, 67),
    ],
)
def test_the_marker_divides_no_other_size(
    max_length: int, sizes: list[int], limit: int | None, expected: int | None
) -> None:
    assert marker_prime(max_length, sizes, limit) == expected


@pytest.mark.parametrize(
    ("max_length", "expected"),
    [
        (8, [8]),
        (32, [32]),
        (33, [32, 33]),
        (64, [32, 48, 64]),
        (100, [32, 48, 64, 96, 100]),
        (256, [32, 48, 64, 96, 128, 192, 256]),
    ],
)
def test_lengths_of_programs(max_length: int, expected: list[int]) -> None:
    assert row_lengths(max_length) == expected


@pytest.mark.parametrize(
    ("max_length", "expected"),
    [
        (8, [8]),
        (16, [16]),
        (17, [16, 17]),
        (30, [16, 20, 24, 28, 30]),
        (64, [*range(16, 64, 4), 64]),
        (100, [*range(16, 64, 4), 64, 72, 80, 88, 96, 100]),
        (256, [*range(16, 64, 4), *range(64, 128, 8), *range(128, 256, 16), 256]),
    ],
)
def test_close_lengths_of_programs(max_length: int, expected: list[int]) -> None:
    assert row_lengths(max_length, close=True) == expected


def test_close_lengths_pad_a_row_by_an_eighth_or_three_tokens_at_most() -> None:
    made = row_lengths(1000, close=True)
    for length in range(16, 1001):
        taken = next(size for size in made if size >= length)
        assert taken - length <= max(3, length / 8)


def test_what_follows_the_sequence() -> None:
    assert follows(37, 37) and follows(74, 37)
    assert not any(follows(size, 37) for size in (0, -37, 36, 37.0, "37", None, (1 << 63) - 1))


def test_a_constant_that_mixes_positions_with_something_else_is_refused() -> None:
    assert position_axes(Value("mask", "weight", "float32", (1, 37, 37)), 37) == [1, 2]
    assert position_axes(Value("B", "state", "float32", (37, 2)), 37) == []
    with pytest.raises(VerifyError, match="constant table: found a dimension of 74"):
        position_axes(Value("table", "weight", "float32", (74, 2)), 37)


def test_a_program_at_another_length_is_the_model_at_that_length() -> None:
    graph, _, inputs = build("llama", "prge", weights="fp32")
    assert graph.any_length and graph.length == 31
    whole = inputs | {
        "tokens": fixed_tokens(3, graph.length),
        "label_positions": _rows(graph.length),
    }
    program = copy_program(graph.programs["evaluate"], "evaluate")
    set_length(program, graph.length, 13)
    shorter = dataclasses.replace(graph, programs={"evaluate": program})
    rows = whole | {"tokens": whole["tokens"][:, :13], "label_positions": _rows(13)}
    expected = interpret(graph, "evaluate", whole)["label_logprobs"]
    torch.testing.assert_close(
        interpret(shorter, "evaluate", rows)["label_logprobs"], expected, atol=2e-6, rtol=0
    )


class _MergesScores(nn.Module):
    """Causal, with the two axes of its scores in one for a while."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x @ x.transpose(1, 2)
        merged = scores.reshape(1, scores.numel()).tanh()
        return x + merged.reshape(scores.shape).tril() @ x


def test_a_size_that_follows_the_sequence_twice_is_replaced_twice() -> None:
    model = SmallModel(_MergesScores()).eval()
    graph = bind_rows(cleanup(capture(model, 13)), 2)
    (program,) = graph.programs.values()
    set_length(program, 13, 6)
    tokens = torch.arange(12).view(2, 6) % VOCAB
    with torch.no_grad():
        found = interpret(graph, program.name, {"tokens": tokens})["logits"]
        torch.testing.assert_close(found, model(tokens).logits)


class _CountsFromTheEnd(nn.Module):
    """Cut as many rows as there are tokens from the end, as causal convolutions do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(x, (0, 0, 3, 0))[:, -x.shape[1] :]


def test_a_start_that_counts_from_the_end_follows_the_sequence() -> None:
    model = SmallModel(_CountsFromTheEnd()).eval()
    graph = bind_rows(cleanup(capture(model, 13)), 2)
    (program,) = graph.programs.values()
    set_length(program, 13, 20)
    tokens = torch.arange(40).view(2, 20) % VOCAB
    with torch.no_grad():
        found = interpret(graph, program.name, {"tokens": tokens})["logits"]
        torch.testing.assert_close(found, model(tokens).logits)


def _rows(length: int) -> torch.Tensor:
    """Seven entries within the first 13 positions of three rows."""
    return torch.tensor([0, 5, 12, length + 3, 2 * length, 2 * length + 7, 2 * length + 12])


class _Causal(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.cumsum(x, dim=1)


class _LooksAtTheWholeRow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.mean(dim=1, keepdim=True)


@pytest.mark.parametrize(("body", "same"), [(_Causal, True), (_LooksAtTheWholeRow, False)])
def test_only_a_model_that_says_the_same_of_shorter_rows_keeps_any_length(
    body: type[nn.Module], same: bool
) -> None:
    graph = capture(SmallModel(body()).eval(), 13)
    graph.any_length = True
    graph = bind_rows(label_logprobs(cleanup(graph), max_labels=8), 2)
    with contextlib.nullcontext() if same else pytest.raises(FixedLength):
        assert check_lengths(graph, measured="evaluate") is graph


def test_numbers_of_slots_are_no_sizes() -> None:
    """Slot 11 of a model captured at 11 tokens keeps its number, and so its noise, when rows get 8 tokens."""
    graph, *_ = build("llama", "prge", max_length="8", **{"lora.target_modules": "all-linear"})
    program = graph.programs["train"]
    assert graph.length == 11

    def numbers() -> list[int]:
        found = (n.args[-1] for n in program.module.graph.nodes if is_call(n, zo.zo_update))
        return sorted(int(number) for number in found)

    before = numbers()
    assert before == list(range(len(before))) and len(before) > 11
    set_length(program, 11, 8)
    assert numbers() == before
