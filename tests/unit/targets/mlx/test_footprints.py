"""What the target ios-mlx says that a program holds at once, against sums by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.rows import program
from zoexport.core.target import Footprint
from zoexport.ir.graphs import aten, zo
from zoexport.targets.mlx import footprints
from zoexport.targets.mlx.footprints import footprint

X = torch.zeros(8, 16)
SIZE = X.nbytes


@pytest.fixture(autouse=True)
def one_call_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums by hand are of calls that end before the next begins, and of tensors alone."""
    monkeypatch.setattr(footprints, "_AHEAD", 0)
    monkeypatch.setattr(footprints, "_OWN", 0)


def of(function: Callable[..., Any], *inputs: torch.Tensor) -> Footprint:
    return footprint(program(function, *inputs))


def test_a_tensor_goes_after_its_last_reader() -> None:
    # Each of the three is computed while its operand is there; the sine is not any more when the last one is.
    found = of(lambda x: aten.exp(aten.cos(aten.sin(x))), X)
    assert found == Footprint(2 * SIZE, 0, found.moved, copies_weights=True)
    # The input is written, each call reads one and writes one, and the result is read.
    assert found.moved == SIZE + 3 * 2 * SIZE + SIZE


def test_calls_that_are_started_ahead_hold_their_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprints, "_AHEAD", 1)
    assert of(lambda x: aten.exp(aten.cos(aten.sin(x))), X).planned == 3 * SIZE


def test_reshaping_what_is_strided_copies_it() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return aten.mul(aten.reshape(aten.transpose(aten.sin(x), 0, 1), [8, 16]), x)

    # The input, the sine's copy, and the sine or the product.
    assert of(function, X).planned == 3 * SIZE
    assert of(lambda x: aten.cos(aten.reshape(aten.sin(x), [128])), X).planned == 2 * SIZE


def test_what_is_read_later_stays() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        first = aten.sin(x)
        return aten.add(aten.exp(aten.cos(first)), first)

    assert of(function, X).planned == 3 * SIZE


def test_views_are_their_operand() -> None:
    def viewed(x: torch.Tensor) -> torch.Tensor:
        return aten.cos(aten.reshape(aten.transpose(aten.sin(x), 0, 1), [128]))

    assert of(viewed, X).planned == 2 * SIZE

    # A part of a tensor keeps the whole of it.
    def part(x: torch.Tensor) -> torch.Tensor:
        return aten.cos(aten.exp(aten.sin(x)[:1]))

    assert of(part, X).planned == 2 * SIZE
    # Taking it moves nothing; an eighth is read and written twice, and read as the result.
    assert of(part, X).moved == 3 * SIZE + 5 * SIZE // 8


def test_parts_of_several_results_are_the_call() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        first, second = aten.split(aten.sin(x), 4)
        return aten.mul(aten.sum(aten.cat([first] * 8)), second)

    # Both parts, as the second is still to be read, eight times the first, and the sum.
    assert of(function, X).planned == SIZE + 4 * SIZE + 4


def test_results_stay_to_the_end() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = aten.sin(x)
        return first, aten.cos(aten.cos(first))

    assert of(function, X).planned == 3 * SIZE


def test_quantized_weights_have_scales_as_numbers_too() -> None:
    codes, scales = torch.zeros(64, 16, dtype=torch.uint8), torch.ones(64, 1).bfloat16()
    x = torch.zeros(4, 32)
    made = program(lambda *inputs: zo.linear_int4(*inputs, None), x, codes, scales)
    alone = footprint(made).planned - (x.nbytes + codes.nbytes + scales.nbytes + 4 * 64 * 4)
    assert alone == scales.nbytes + 2 * 64 * 4


def test_weights_of_a_whole_program_are_counted_apart() -> None:
    made = program(lambda x, w: aten.mm(aten.sin(x), w), X, torch.zeros(16, 16))
    made.inputs[1] = dataclasses.replace(made.inputs[1], role="weight")
    assert footprint(made).planned == 2 * SIZE
    assert footprint(made).copies_weights
    made.family = "layer.0"
    assert footprint(made).planned == 2 * SIZE + 16 * 16 * 4
    assert not footprint(made).copies_weights


@pytest.mark.parametrize("rows", [8, 40_000])
def test_integers_are_perturbed_a_few_rows_at_a_time(rows: int) -> None:
    """Beside the inputs and the result, what 2**18 integers or some more take."""
    inputs = (
        X,
        torch.zeros(rows, 16, dtype=torch.int8),
        torch.ones(rows),
        torch.zeros(8, 2, dtype=torch.int32),
        *(torch.zeros(1, dtype=torch.int64), torch.ones(1)),
        *(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)),
    )

    def function(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor, *noise: Any) -> torch.Tensor:
        return zo.grid_linear_int8(x, c, s, None, *noise, 1)

    around = sum(tensor.nbytes for tensor in inputs) + 4 * 8 * rows
    perturbed = 16 * min(rows, (1 << 18) // 16 + 4)
    assert of(function, *inputs).planned == around + 80 * perturbed
