"""The rules of the target ios-mlx for integers that are trained, against torch: the same noise, the same grids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.mlx_arrays import assert_rule, by_rule, case, covered, to_mlx
from tests.support.tiny_models import fixed
from zoexport.core import activation_grids, grid, int4, rng
from zoexport.ir.graphs import zo
from zoexport.targets.mlx import packing
from zoexport.targets.mlx.grid import grids, words

N, K, QUERIES = 37, 96, 3
X, BIAS = fixed("x", (4 * 2 * QUERIES, 2, K)), fixed("bias", (N,))
WEIGHT = fixed("weight", (N, K)) / 8
CODES = {
    zo.grid_linear_int4.default: int4.quantize_int4(WEIGHT),
    zo.grid_linear_int8.default: int4.quantize_int8(WEIGHT),
}
TABLES = {2: grid.pair_table(0.5, 2), 8: grid.pair_table(30, 8)}


def noise(bits: int = 2, eps: float = 0.5, seed: int = 7, step: int = 9) -> tuple[Any, ...]:
    """Table, number, epsilon, seed and step."""
    numbers = (torch.tensor([number]) for number in (seed, step))
    return (torch.from_numpy(TABLES[bits]), torch.tensor([11]), torch.tensor([eps]), *numbers)


PRODUCTS = [
    case(operator, X, *codes, bias, *given, QUERIES)
    for operator, codes in CODES.items()
    for bias, given in (
        (BIAS, noise()),
        (None, noise(8, 30.0, seed=-1, step=0)),
        (None, noise(seed=2**40 + 3, step=2**32 - 1)),
        (BIAS, noise(eps=0.0)),
    )
]
ROUNDED = 4 * fixed("rounded", (3, 5, 40)) ** 3
FORMATS = [
    case(zo.round_activations.default, ROUNDED, format.tensor())
    for format in (
        activation_grids.int8(8.0),
        activation_grids.int8(0.5),
        activation_grids.fp8(float(ROUNDED.abs().max())),
        activation_grids.hybrid(1.25, float(ROUNDED.abs().max())),
    )
]


@pytest.mark.parametrize(("operator", "args", "kwargs"), PRODUCTS)
def test_product(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Another direction would be off by whole steps of the grid."""
    assert_rule(operator, args, kwargs, rounding=3e-6)


@pytest.mark.parametrize(("operator", "args", "kwargs"), FORMATS)
def test_values_on_grids_are_the_same(
    operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert torch.equal(by_rule(operator, args, kwargs), operator(*args))


def test_every_rule_has_a_case() -> None:
    assert covered([*PRODUCTS, *FORMATS]) == grids().keys()


@pytest.mark.parametrize(
    ("seed", "step", "query", "count"),
    [(7, 9, 0, 16), (-1, 2**32 - 1, 5, 4099), (-(2**62), 0, 2**31, 1), (2**40 + 1, 3, 1, 4098)],
)
def test_words_are_those_of_the_noise_specification(
    seed: int, step: int, query: int, count: int
) -> None:
    given = [to_mlx(torch.tensor([number])) for number in (seed, 2**31 - 2, step)]
    found = words(given[0], given[1], query, given[2], count)
    expected = rng.words(seed % 2**64, 2**31 - 2, query, step, count)
    np.testing.assert_array_equal(np.array(found), expected)


@pytest.mark.parametrize("operator", CODES)
def test_without_queries_nothing_is_drawn(operator: Any) -> None:
    """As with epsilon zero, of rows that are no copies."""
    args = (X[:1], *CODES[operator], BIAS, *noise(eps=0.0))
    expected = operator(*args, QUERIES)
    torch.testing.assert_close(by_rule(operator, (*args, 0), {}), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("operator", CODES)
def test_a_weight_in_parts(operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one is shorter, and each begins where its words do."""
    monkeypatch.setattr(packing, "_PANEL", 9 * K)
    assert [part.start for part in packing.panels(N, K)] == [0, 12, 24, 36]
    args = (X, *CODES[operator], BIAS, *noise(), QUERIES)
    assert_rule(operator, args, {}, rounding=3e-6)


def test_rows_need_be_no_copies_without_epsilon() -> None:
    """An evaluation has other examples in the rows of each copy."""
    for operator, codes in CODES.items():
        args = (X, *codes, None, *noise(eps=0.0), QUERIES)
        plain = zo.linear_int4 if codes[1].dim() == 2 else zo.linear_int8
        found = by_rule(operator, args, {})
        torch.testing.assert_close(found, plain(X, *codes, None), rtol=1e-6, atol=3e-6)
