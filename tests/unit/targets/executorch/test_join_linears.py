"""join_linears: which layers become one call, and that their results stay, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.graphs import operators
from tests.support.programs import lower, values
from tests.support.rows import program
from zoexport.core import int4
from zoexport.core.graph import Program
from zoexport.ir.graphs import copy_program, zo
from zoexport.targets.executorch.join_linears import join_linears

Weight = tuple[torch.Tensor, torch.Tensor]


def weight(columns: int, depth: int, seed: int) -> Weight:
    return int4.quantize_int4(values(columns, depth, seed=seed), 32)


def counts(made: Program) -> tuple[int, int, int]:
    """Calls of one layer, of two and of three."""
    found = operators(made)
    names = ("rounded_linear", "rounded_linears_2", "rounded_linears_3")
    alone, two, three = (found[f"zoexport.{name}.default"] for name in names)
    return alone, two, three


def joined(function: Callable[..., Any], *inputs: torch.Tensor) -> Program:
    """The rewritten program, after a look at its values."""
    made = program(function, *inputs)
    found = join_linears(copy_program(made, "joined"))
    found.module.graph.lint()
    for ours, theirs in zip(found.module(*inputs), made.module(*inputs), strict=True):
        assert torch.equal(ours, theirs)
    return found


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (1, (1, 0, 0)),
        (2, (0, 1, 0)),
        (3, (0, 0, 1)),
        (4, (1, 0, 1)),
        (5, (0, 1, 1)),
    ],
)
def test_layers_that_read_the_same_rows_are_one_call(
    layers: int, expected: tuple[int, int, int]
) -> None:
    weights = [weight(8 * (number + 1), 64, number) for number in range(layers)]

    def function(x: torch.Tensor, bias: torch.Tensor, *packed: torch.Tensor) -> Any:
        pairs = zip(packed[::2], packed[1::2], strict=True)
        return tuple(
            zo.rounded_linear(x, codes, scales, None if number else bias)
            for number, (codes, scales) in enumerate(pairs)
        )

    given = [tensor for pair in weights for tensor in pair]
    assert counts(joined(function, values(3, 64), values(8), *given)) == expected


def test_layers_of_other_rows_stay_apart() -> None:
    def function(
        x: torch.Tensor, y: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
    ) -> Any:
        z = zo.rounded_linear(x, codes, scales, None)
        return z, zo.rounded_linear(y, codes, scales, None)

    x, y = values(3, 64), values(3, 64, seed=1)
    assert counts(joined(function, x, y, *weight(64, 64, 2))) == (2, 0, 0)


def test_layers_stay_apart_where_one_of_other_rows_lies_between() -> None:
    """The later one's results would take memory from the first one on."""

    def function(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> Any:
        first = zo.rounded_linear(x, codes, scales, None)
        other = zo.rounded_linear(first, codes, scales, None)
        return other, zo.rounded_linear(x, codes, scales, None)

    assert counts(joined(function, values(3, 64), *weight(64, 64, 2))) == (3, 0, 0)


def test_a_layer_whose_weights_are_computed_stays_apart() -> None:
    """They may not be there yet where the first of the others is."""

    def function(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> Any:
        first = zo.rounded_linear(x, codes, scales, None)
        bias = first.sum(0)
        second = zo.rounded_linear(x, codes, scales, bias)
        return first, second, zo.rounded_linear(x, codes, scales, None)

    assert counts(joined(function, values(3, 64), *weight(32, 64, 3))) == (1, 1, 0)


@pytest.mark.parametrize("seed", range(6))
def test_on_the_device_the_bits_are_those_of_single_layers(seed: int) -> None:
    """Widths, depth, rows and biases drawn at random; rows of zeros at the end give the bias."""
    drawn = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=drawn))

    depth, rows, count = 32 * number(1, 12), number(1, 40), number(2, 3)
    layers = [
        (*weight(number(1, 90), depth, 10 * seed + i), number(0, 1) == 1) for i in range(count)
    ]
    biases = [
        values(len(codes), seed=i) if bias else None for i, (codes, _, bias) in enumerate(layers)
    ]
    given = [
        tensor
        for (codes, scales, _), bias in zip(layers, biases, strict=True)
        for tensor in (codes, scales, bias)
    ]
    together = getattr(zo, f"rounded_linears_{count}")
    x = values(2, rows, depth, seed=seed)
    x[:, math.ceil(rows / 2) :] *= number(0, 1)
    found = lower(lambda x: together(x, *given), (x,)).execute((x,))
    for y, (codes, scales, _), bias in zip(found, layers, biases, strict=True):
        alone = lower(
            lambda x, codes=codes, scales=scales, bias=bias: zo.rounded_linear(
                x, codes, scales, bias
            ),
            (x,),
        )
        assert torch.equal(y, alone.execute((x,))[0])
