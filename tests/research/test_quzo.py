"""The report on QuZO's estimators: theory against sampling, biases on a linear loss, its page of made-up figures."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from research.quzo import block as quzo_block
from research.quzo import measure as quzo_estimators
from research.quzo import training as quzo_training
from research.quzo.block import Block
from research.quzo.measure import name_of, squared_norm, summary
from research.quzo.rounding import Rounding
from research.quzo.training import Grid

SMALL = Block(width=4, heads=2, hidden=6)
PLAN = quzo_estimators.Plan(block=SMALL, directions=500, groups=20, joined=10)
GRID = Grid(8, -127, 127, eps=2.0, rates=(2.0,))


def quiet(phase: str, done: float | None) -> None:
    pass


def numbers(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Normal and uniform ones, (count,)."""
    generator = torch.Generator().manual_seed(seed)
    kind = torch.float64
    return (
        torch.randn(count, generator=generator, dtype=kind),
        torch.rand(count, generator=generator, dtype=kind),
    )


def test_the_block_is_the_same_one_by_one_and_in_a_batch() -> None:
    inputs = quzo_block.normal(0, 2, 3, SMALL.width)
    vectors = torch.stack([SMALL.weights(1), SMALL.weights(2)])
    batched = vmap(lambda vector: SMALL.outputs(vector, inputs))(vectors)
    assert batched.shape == (2, 2, 3, 4)
    for vector, found in zip(vectors, batched, strict=True):
        torch.testing.assert_close(found, SMALL.outputs(vector, inputs))
        for one, each in zip(inputs, found, strict=True):
            torch.testing.assert_close(SMALL.outputs(vector, one), each)


def test_row_maxima() -> None:
    maxima = SMALL.row_maxima(SMALL.weights(1))
    first = SMALL.matrices(SMALL.weights(1))[0]
    assert maxima.shape == (SMALL.size(),)
    assert maxima[:4].tolist() == [float(first[0].abs().max())] * 4


@pytest.mark.parametrize(("bits", "percent"), [(8, 0.0093), (4, 3.05), (3, 16.6)])
def test_rounding_adds_to_the_naive_estimators_mean(bits: int, percent: float) -> None:
    naive, fair = Rounding.of_bits(bits).moments()
    assert 100 * (naive.mean - fair.mean) == pytest.approx(percent, rel=5e-3)
    # In closed form -2 (c density(c) - (c^2 - 1) tail(c)), c = 3.
    assert fair.mean - 1 == pytest.approx(-0.00499272, rel=1e-5)


@pytest.mark.parametrize("rounding", [Rounding.of_bits(3), Rounding(7, 0.25), Rounding(2, 1.5)])
def test_moments_are_those_of_samples(rounding: Rounding) -> None:
    normal, uniform = numbers(400_000, 0)
    first = rounding.perturbation(normal, uniform)
    second = rounding.perturbation(normal, numbers(400_000, 1)[1])
    assert set(rounding.levels(normal, uniform).tolist()) <= set(
        range(-rounding.limit, rounding.limit + 1)
    )
    naive, fair = rounding.moments()
    for moments, other in ((naive, first), (fair, second)):
        assert float((first * other).mean()) == pytest.approx(moments.mean, rel=0.02)
        assert float((first * other).square().mean()) == pytest.approx(moments.fourth, rel=0.04)
        assert moments.square == naive.mean


def test_biases_on_a_linear_loss_are_theorys() -> None:
    """Where RGE is exact but for noise: Q-RGE1's bias at INT3 shows, paired; Q-RGE2 has the clamp's alone."""
    gradient = quzo_block.normal(5, 60)
    samples = quzo_estimators.sample(
        lambda vector: vector @ gradient, torch.zeros_like(gradient), gradient, PLAN, quiet
    )
    assert len(samples) == 7
    for bits in PLAN.bits:
        for estimator in ("Q-RGE1", "Q-RGE2"):
            found = summary(samples, gradient, bits, name_of(estimator, bits), PLAN)
            expected = found["theory"]["mean"] - 1
            for key in ("all", "paired"):
                middle, half = found[key]
                assert abs(middle - expected) < half
            assert found["paired"][1] < found["all"][1] / 1.5
            middle, half = found["bias"]
            assert abs(middle - expected**2) < half
            for point in found["errors"]:
                assert point["interval"][0] == pytest.approx(point["theory"], rel=0.1)
    middle, half = summary(samples, gradient, 3, name_of("Q-RGE1", 3), PLAN)["paired"]
    assert middle > 4 * half
    plain = summary(samples, gradient, None, "RGE", PLAN)
    assert "paired" not in plain and plain["clamp"] == 0


def test_squared_norm_is_without_the_noises_part() -> None:
    means = 3.0 + numbers(40 * 50, 2)[0].view(40, 50)
    middle, half = squared_norm(means)
    assert abs(middle - 9 * 50) < half < 100
    pairs = [float(means[i] @ means[j]) for i in range(40) for j in range(40) if i != j]
    assert middle == pytest.approx(sum(pairs) / len(pairs))


def test_intervals_are_students() -> None:
    middle, half = quzo_estimators.interval(torch.arange(10.0))
    assert middle == 4.5
    assert half == pytest.approx(3.250 * 3.02765 / 10**0.5, rel=1e-2)


def moved(loss: quzo_block.Loss, weights: Tensor, rate: float) -> Tensor:
    rates = torch.tensor([[[rate]]])
    return quzo_training.step(loss, weights, GRID, rates, 4, torch.Generator().manual_seed(0))


def test_a_step_moves_whole_numbers_against_the_gradient() -> None:
    slopes = quzo_block.normal(6, 30, dtype=torch.float32)
    after = moved(lambda vector: vector @ slopes, torch.zeros(2, 1, 400, 30), 2.0)
    assert torch.equal(after, after.round())
    for found, moments in zip(after, GRID.rounding.moments(), strict=True):
        # The mean of 1600 directions, whose standard deviation is about 2 |slopes|.
        off = found[0].mean(0) + 2 * moments.mean * slopes
        assert float(off.abs().max()) < 4 * 2 * float(slopes.norm()) / 1600**0.5


def test_a_step_stays_on_the_grid() -> None:
    after = moved(lambda vector: -vector.sum(), torch.full((2, 1, 3, 30), 120.0), 50.0)
    assert after.max() == 127 and after.min() >= -127


def test_gradients_of_the_block_are_what_rge_estimates() -> None:
    loss = quzo_block.distance(
        SMALL.outputs, quzo_block.normal(0, 3, 4), quzo_block.normal(1, 3, 4)
    )
    at = SMALL.weights(1)
    gradient = quzo_block.gradient(loss, at)
    plan = dataclasses.replace(PLAN, groups=20, bits=())
    found = summary(
        quzo_estimators.sample(loss, at, gradient, plan, quiet), gradient, None, "RGE", plan
    )
    middle, half = found["all"]
    assert abs(middle) < half
