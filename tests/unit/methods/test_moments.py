"""Momentum and Adam of zeroth-order methods: what is compiled, what is refused, and the reference itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.tiny_models import tiny
from zoexport.compiler.plan import plan
from zoexport.core.config import parse
from zoexport.core.errors import ConfigError
from zoexport.core.step_plan import ProbeLevel, StepPlan, UpdateRule
from zoexport.methods import methods
from zoexport.methods.reference.moments import MomentsReference, orthogonal

STEPS = [[0.5, -1.0, 2.0], [3.0, 0.25, -0.5], [-0.75, 1.5, 1.0], [0.0, 0.0, 0.0]]
RATES = [0.01, 0.02, 0.015, 0.01]


def reference_of(method: str = "mezo", **settings: Any) -> MomentsReference:
    """Over three masters of odd shapes."""
    registered = methods.get(method)
    config = parse(registered.config, {"num_queries": 3, "seed": 3, **settings})
    slots = {f"lora_B.{i}": torch.randn(shape) for i, shape in enumerate([(1, 1), (3, 7), (2, 5)])}
    reference = registered.reference(tiny("llama"), config, slots)
    assert isinstance(reference, MomentsReference)
    return reference


def applied(reference: MomentsReference) -> dict[str, torch.Tensor]:
    """The masters after all steps."""
    for gradients, rate in zip(STEPS, RATES, strict=True):
        reference.pending = (gradients, rate)
        reference.step_number += 1
        reference.finish()
    return reference.masters


def by_torch(reference: MomentsReference, betas: tuple[float, float]) -> dict[str, torch.Tensor]:
    """The same by ``torch.optim.Adam``, in float64."""
    masters = {name: value.double().requires_grad_() for name, value in reference.masters.items()}
    optimizer = torch.optim.Adam(list(masters.values()), betas=betas, eps=1e-8)
    for step, (gradients, rate) in enumerate(zip(STEPS, RATES, strict=True)):
        for name, value in masters.items():
            value.grad = reference.estimate(name, gradients, step).double()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    return {name: value.detach() for name, value in masters.items()}


@pytest.mark.parametrize("method", ["prge", "mezo", "fzoo"])
@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.5, 0.999), (0.0, 0.9)])
def test_adam_is_that_of_torch_while_nothing_is_older_than_the_horizon(
    method: str, betas: tuple[float, float]
) -> None:
    reference = reference_of(
        method, optimizer="adam", beta1=betas[0], beta2=betas[1], horizon=len(STEPS)
    )
    expected = by_torch(reference, betas)
    for name, value in applied(reference).items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-6)


def test_what_is_older_than_the_horizon_does_not_count() -> None:
    long, short = (
        reference_of(optimizer="momentum", beta1=0.5, horizon=horizon) for horizon in (2, 1)
    )
    before = long.masters["lora_B.1"].clone()
    short.masters = dict(long.masters)
    newest, older = (long.estimate("lora_B.1", STEPS[step], step) for step in (1, 0))
    for reference in (long, short):
        reference.past, reference.step_number = [STEPS[0]], 2
        reference.pending = (STEPS[1], 0.1)
        reference.finish()
    torch.testing.assert_close(
        long.masters["lora_B.1"], before - 0.1 * (2 / 3 * newest + 1 / 3 * older)
    )
    torch.testing.assert_close(short.masters["lora_B.1"], before - 0.1 * newest)


@pytest.mark.parametrize("given", [{"horizon": "1"}, {"beta1": "0"}])
def test_momentum_of_one_step_is_sgd(given: dict[str, str]) -> None:
    momentum, sgd = reference_of(optimizer="momentum", **given), reference_of()
    sgd.masters = dict(momentum.masters)
    expected = applied(sgd)
    for name, value in applied(momentum).items():
        torch.testing.assert_close(value, expected[name])


@pytest.mark.parametrize(
    ("method", "level", "rest"),
    [
        ("prge", ProbeLevel(0, 3), ("stage",)),
        ("mezo", ProbeLevel(0, 3), ("one",)),
        ("fzoo", ProbeLevel(0, 3, "forward"), ("stage", "rademacher", "deviation")),
    ],
)
def test_the_plan_states_the_rule(method: str, level: ProbeLevel, rest: tuple[Any, ...]) -> None:
    settings = {"num_queries": "3", "optimizer": "adam", "horizon": "4"}
    planned = plan(method, "host", settings)
    graph: Any = planned.method.passes(planned.config, ["q_proj"])[-1].apply(_Graph())  # type: ignore[arg-type]
    rule = UpdateRule("adam", 4, 0.9, 0.99)
    assert graph.step == StepPlan((level,), *rest, update=rule)
    assert graph.step.as_dict()["update"] == {
        "rule": "adam",
        "horizon": 4,
        "beta1": 0.9,
        "beta2": 0.99,
    }
    assert "update" not in StepPlan((level,)).as_dict()
    momentum = parse(methods.get(method).config, {**settings, "optimizer": "momentum"}).update
    assert momentum.as_dict() == {"rule": "momentum", "horizon": 4, "beta1": 0.9}


class _Graph:
    """What a pass that states the step of a graph needs of one."""

    step: StepPlan


@pytest.mark.parametrize("method", ["prge", "mezo", "fzoo"])
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "muon"])
def test_programs_of_the_whole_model_are_refused(method: str, optimizer: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"optimizer={optimizer}.*Add granularity=layer"
    ) as caught:
        plan(method, "ios-mlx", {"optimizer": optimizer})
    assert "problems" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("prge", {"optimizer": "adamw"}, "one of sgd, momentum, adam, muon"),
        ("prge", {"beta1": "1"}, "of at least 0 and below 1"),
        ("mezo", {"beta2": "-0.1"}, "of at least 0 and below 1"),
        ("fzoo", {"horizon": "0"}, "of at least 1 and below 1001"),
        ("fzoo", {"horizon": "1001"}, "of at least 1 and below 1001"),
        ("spzo", {"optimizer": "adam"}, "no such setting"),
        ("senszoq", {"optimizer": "adam"}, "no such setting"),
        ("quzo", {"horizon": "3"}, "no such setting"),
    ],
)
def test_values_that_cannot_be(method: str, given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(methods.get(method).config, given)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (96, 5), (16, 16), (2, 400)])
def test_an_orthogonal_factor_has_singular_values_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(shape[1])) * 1e-3
    u, values, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    assert float(values.min()) > 1e-3 * float(values.norm())
    found = orthogonal(matrix)
    assert found.shape == matrix.shape and found.dtype == torch.float32
    factors = torch.diagonal(u.T @ found.double() @ v.T)
    assert float(factors.min()) > 0.6 and float(factors.max()) < 1.3
    # The same directions: nothing is left beside them.
    rest = found.double() - u @ torch.diag(factors) @ v
    assert float(rest.abs().max()) < 1e-6
    torch.testing.assert_close(found, orthogonal(1000 * matrix), rtol=1e-5, atol=1e-6)
    assert torch.equal(orthogonal(torch.zeros(shape)), torch.zeros(shape))


def test_muon_moves_by_the_factor_of_the_mean() -> None:
    reference = reference_of(optimizer="muon", beta1=0.5, horizon=2)
    before = dict(reference.masters)
    reference.past, reference.step_number = [STEPS[0]], 2
    reference.pending = (STEPS[1], 0.1)
    reference.finish()
    for name, master in before.items():
        newest, older = (reference.estimate(name, STEPS[step], step) for step in (1, 0))
        move = orthogonal(2 / 3 * newest + 1 / 3 * older)
        torch.testing.assert_close(reference.masters[name], master - 0.1 * move)


def test_muon_is_of_adapters() -> None:
    given = {"optimizer": "muon", "train": "full"}
    with pytest.raises(ConfigError, match=r"optimizer=muon.*Leave train at lora"):
        plan("mezo", "host", given)
