"""Activation grids: E4M3 against torch's own type, what is fitted to values, and what the errors say."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.programs import same, values
from zoexport.core import activation_grids as grids
from zoexport.core.activation_grids import FP8, HYBRID, INT8, Format

SCALES = torch.tensor([1e-6, 1e-3, 0.02, 0.4, 1.0, 17.0, 300.0])


def spread(count: int) -> torch.Tensor:
    """Values over many powers of two."""
    return values(count) * torch.exp2(values(count, seed=1) * 6)


# --- rounding -------------------------------------------------------------------------------------


def test_e4m3_is_torchs_type_up_to_its_largest_number() -> None:
    x = spread(100_000).clamp(-448, 448)
    assert same(grids.e4m3(x), x.to(torch.float8_e4m3fn).float())


def test_every_e4m3_number_stays_and_the_middles_go_to_even_ones() -> None:
    numbers = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    assert same(grids.e4m3(numbers), numbers) and same(grids.e4m3(-numbers), -numbers)
    middles = (numbers[1:] + numbers[:-1]) / 2
    even = torch.where(torch.arange(126) % 2 == 0, numbers[:-1], numbers[1:])
    assert same(grids.e4m3(middles), even)
    above = torch.tensor([449.0, 480.0, 1e30, math.inf])
    assert grids.e4m3(above).eq(448).all() and grids.e4m3(-above).eq(-448).all()


def test_int8_steps_are_whole_and_end_at_127() -> None:
    x = values(1000) * 2
    found = grids.rounded(x, grids.int8(4.0).tensor())
    scale = torch.tensor(4.0) / 127
    assert same(found, torch.clamp(torch.round(x / scale), -127, 127) * scale + 0.0)
    assert found.unique().numel() <= 255 and float(found.max()) == float(127 * scale)


def test_outliers_alone_are_floats() -> None:
    x = spread(1000)
    format = grids.hybrid(1.5, 400.0)
    small = x.abs() <= 1.5
    found = grids.rounded(x, format.tensor())
    steps = torch.clamp(torch.round(x / format.scale), -127, 127) * format.scale + 0.0
    floats = (x / format.float_scale).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    assert same(found, torch.where(small, steps, floats * format.float_scale))
    assert bool(small.any()) and not bool(small.all())


@pytest.mark.parametrize("format", [grids.int8(1.0), grids.fp8(1.0), grids.hybrid(0.5, 1.0)])
def test_nan_stays_and_infinity_is_cut(format: Format) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0])
    found = grids.rounded(x, format.tensor())
    assert found[0].isnan() and found[3] == 0
    assert found[1] == -found[2] == format.largest()


# --- fitting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("outliers", [0.0, 0.01, 0.2])
@pytest.mark.parametrize("search", [False, True])
def test_the_largest_value_is_within_every_grid(outliers: float, search: bool) -> None:
    for scale in SCALES:
        x = values(50, 40) * scale
        format = grids.fit(x, outliers=outliers, search=search)
        most = x.abs().argmax()
        largest, found = x.flatten()[most], grids.rounded(x, format.tensor()).flatten()[most]
        assert abs(found - largest) <= largest.abs() * (2**-8 if format.kind == INT8 else 2**-4)
        assert format.largest() >= float(largest.abs()) * (1 - 1e-6)


def test_outliers_are_as_many_as_the_ratio_says() -> None:
    x = values(10_000)
    for ratio in (0.01, 0.05, 0.3):
        format = grids.with_outliers(x, ratio)
        assert format.kind == HYBRID
        assert int((x.abs() > format.threshold).sum()) == round(ratio * 10_000)
        assert format.scale == pytest.approx(format.threshold / 127)
        fraction, _ = math.frexp(format.float_scale)
        assert fraction == 0.5  # a bias is a power of two
        assert 224 * format.float_scale < float(x.abs().max()) <= 448 * format.float_scale


def test_a_bias_is_the_smallest_that_reaches() -> None:
    assert grids.hybrid(1.0, 448.0).float_scale == 1.0
    assert grids.hybrid(1.0, 448.5).float_scale == 2.0


def test_mostly_zero_inputs_have_no_outliers() -> None:
    x = torch.zeros(1000)
    assert grids.with_outliers(x, 0.01).kind == INT8
    x[0] = 3.0
    format = grids.with_outliers(x, 0.01)
    assert format.kind == INT8 and float(grids.rounded(x, format.tensor())[0]) == pytest.approx(3.0)
    for search in (False, True):
        format = grids.fit(torch.zeros(5), outliers=0.01, search=search)
        assert grids.rounded(torch.zeros(5), format.tensor()).eq(0).all()


def test_search_takes_the_format_with_the_smaller_error() -> None:
    plain, tailed = values(4000), spread(4000)
    assert grids.fit(plain, outliers=0, search=True).kind == INT8
    assert grids.fit(tailed, outliers=0, search=True).kind == FP8
    for x in (plain, tailed):
        for outliers in (0.0, 0.01):
            fixed = grids.fit(x, outliers=outliers, search=False)
            chosen = grids.fit(x, outliers=outliers, search=True)
            other = grids.fp8(float(x.abs().max()))
            errors = [grids.squared_error(x, format) for format in (fixed, other)]
            assert grids.squared_error(x, chosen) == min(errors)


def test_the_error_is_the_mean_square() -> None:
    x = values(30, 20)
    found = grids.squared_error(x, grids.int8(2.0))
    difference = x.double() - grids.rounded(x, grids.int8(2.0).tensor()).double()
    assert found == pytest.approx(float(difference.square().mean()), rel=1e-6)


def test_a_few_outliers_make_int8_worse_than_telling_them_apart() -> None:
    x = values(10_000)
    x[:50] *= 40
    plain, apart = grids.int8(float(x.abs().max())), grids.with_outliers(x, 0.01)
    assert grids.squared_error(x, apart) < grids.squared_error(x, plain) / 2
