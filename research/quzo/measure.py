"""``make report-quzo``: bias and error of QuZO's two gradient estimators, and training with them, on a small block.

``python -m research.quzo.measure PAGE`` makes the paper's figure 3. (a) Weights are real numbers and
perturbations small, so that only the estimators count. Every rounded estimate has an unrounded one of the same u
beside it (equation 1): the mean of their difference is the bias, with little of the noise that both have. (b) is
``quzo_training``.
``page`` writes the page's marked part, its tables and the raw runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from research.quzo import block as quzo_block
from research.quzo import page
from research.quzo import training as quzo_training
from research.quzo.block import Block, Loss
from research.quzo.rounding import UNROUNDED, Moments, Rounding
from research.support.command import Clock, add_places, exit_status
from research.support.page import marked
from research.support.tables import RAW
from zoexport.core.cores import usable_cores
from zoexport.core.progress import Progress
from zoexport.tools.bench import conditions

RESULTS = RAW / "quzo"
PLAIN = "RGE"
DEVIATIONS = 2.576
"""Standard errors to each side of an interval: 99 %, of normal numbers."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is estimated.

    Attributes:
        bits: of the perturbations.
        eps: of equations 3 and 8, in the weights' own unit: so small that the loss is nearly linear.
        directions: of one group, as many as the paper has (n = 1000).
        groups: how many; ``joined``, which divides it: of how many the error of a longer mean is shown.
    """

    block: Block = dataclasses.field(default_factory=Block)
    tokens: int = 4
    bits: tuple[int, ...] = (8, 4, 3)
    eps: float = 1e-4
    directions: int = 1000
    groups: int = 200
    joined: int = 20
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Sample:
    """An estimator's values.

    Attributes:
        projections: <estimate, g> / |g|^2 of each direction, (groups * directions,).
        means: of each group's estimates, over |g|, (groups, d).
    """

    projections: Tensor
    means: Tensor


def sample(
    loss: Loss, at: Tensor, gradient: Tensor, plan: Plan, progress: Progress
) -> dict[str, Sample]:
    """Estimates of RGE and, for each of ``plan.bits``, of Q-RGE1 and Q-RGE2; all are of the same u.

    Args:
        loss: of weights (d,).
        at: the weights, (d,).
        gradient: the true one, (d,).
        plan: what is estimated.
        progress: called with what is being done, and how much of that is done.
    """
    noise = torch.Generator().manual_seed(plan.seed)
    size = (plan.directions, at.numel())
    norm = gradient.norm()
    kept: dict[str, tuple[list[Tensor], list[Tensor]]] = {}

    def slopes(moves: Tensor) -> Tensor:
        up, down = (vmap(loss)(at + sign * plan.eps * moves) for sign in (1, -1))
        return (up - down) / (2 * plan.eps)

    def keep(name: str, slope: Tensor, direction: Tensor) -> None:
        projections, means = kept.setdefault(name, ([], []))
        projections.append(slope * (direction @ gradient) / norm**2)
        means.append(slope @ direction / plan.directions / norm)

    for group in range(plan.groups):
        progress("estimates", group / plan.groups)
        normal = torch.randn(size, generator=noise, dtype=at.dtype)
        keep(PLAIN, slopes(normal), normal)
        for bits in plan.bits:
            rounding = Rounding.of_bits(bits)
            first, second = (
                rounding.perturbation(normal, torch.rand(size, generator=noise, dtype=at.dtype))
                for _ in range(2)
            )
            slope = slopes(first)
            keep(name_of("Q-RGE1", bits), slope, first)
            keep(name_of("Q-RGE2", bits), slope, second)
    return {
        name: Sample(torch.cat(projections), torch.stack(means))
        for name, (projections, means) in kept.items()
    }


def name_of(estimator: str, bits: int) -> str:
    """The name of an estimator with perturbations of so many bits."""
    return f"{estimator} INT{bits}"


def interval(values: Tensor) -> list[float]:
    """The mean of independent values, and how far it may be off to each side.

    Student's factor, from the normal one by the first two terms of its expansion (Abramowitz and Stegun 26.7.5).
    """
    z, freedom = DEVIATIONS, len(values) - 1
    factor = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return [float(values.mean()), float(factor * values.std() / math.sqrt(len(values)))]


def errors(means: Tensor, gradient: Tensor, joined: int) -> list[float]:
    """|mean - g| / |g| of means over ``joined`` groups each, as an interval.

    Args:
        means: of groups, over |g|, (groups, d).
        gradient: (d,).
        joined: divides the number of groups.
    """
    longer = means.unflatten(0, (-1, joined)).mean(1)
    return interval((longer - gradient / gradient.norm()).norm(dim=1))


def squared_norm(means: Tensor) -> list[float]:
    """|E[mean]|^2 without the noise's part, as an interval: products of different groups, jackknifed.

    Args:
        means: independent ones of groups, (groups, d); three or more.
    """
    count = len(means)
    own, total = means.square().sum(1), means.sum(0)
    whole = (total.square().sum() - own.sum()) / (count * (count - 1))
    less = (total - means).square().sum(1) - (own.sum() - own)
    less /= (count - 1) * (count - 2)
    deviation = ((count - 1) / count * (less - less.mean()).square().sum()).sqrt()
    return [float(whole), float(DEVIATIONS * deviation)]


def summary(
    samples: Mapping[str, Sample], gradient: Tensor, bits: int | None, name: str, plan: Plan
) -> dict[str, Any]:
    """An estimator's figures beside theory's; intervals are [middle, half its width].

    Returns:
        ``theory``, the moments; ``clamp``, the clamp's part of the mean; ``few``, ``all`` and ``paired``:
        <mean, g> / |g|^2 - 1 of the first group, of all directions, and of all less that of RGE; ``errors``: how many
        directions, the interval, and theory's error; ``bias``, |mean of the estimator - mean of RGE|^2 / |g|^2.
    """
    found, plain = samples[name], samples[PLAIN]
    moments, clamp = _theory(bits, name)
    joined = [count for count in (1, 2, 5, 10, 20) if plan.joined % count == 0]
    result: dict[str, Any] = {
        "name": name,
        "bits": bits,
        "theory": dataclasses.asdict(moments),
        "clamp": clamp,
        "few": interval(found.projections[: plan.directions] - 1),
        "all": interval(found.projections - 1),
        "errors": [
            {
                "n": count * plan.directions,
                "interval": errors(found.means, gradient, count),
                "theory": moments.error(len(gradient), count * plan.directions),
            }
            for count in joined
        ],
    }
    if bits is not None:
        result["paired"] = interval(found.projections - plain.projections)
        result["bias"] = squared_norm(found.means - plain.means)
    return result


def _theory(bits: int | None, name: str) -> tuple[Moments, float]:
    """Moments, and what the clamp makes of a mean of 1: Q-RGE2's, which has no other part."""
    if bits is None:
        return UNROUNDED, 0.0
    first, second = Rounding.of_bits(bits).moments()
    return first if name == name_of("Q-RGE1", bits) else second, second.mean - 1


def measure(
    plan: Plan, training: quzo_training.Plan, command: str, progress: Progress
) -> dict[str, Any]:
    """Everything that the page shows."""
    load = conditions.load_average()
    block = plan.block
    loss = quzo_block.distance(
        block.outputs,
        quzo_block.normal(2, plan.tokens, block.width),
        quzo_block.normal(3, plan.tokens, block.width),
    )
    at = block.weights(1)
    gradient = quzo_block.gradient(loss, at)
    samples = sample(loss, at, gradient, plan, progress)
    names: list[tuple[int | None, str]] = [(None, PLAIN)]
    names += [(bits, name_of(each, bits)) for bits in plan.bits for each in ("Q-RGE1", "Q-RGE2")]
    return {
        "estimators": [summary(samples, gradient, bits, name, plan) for bits, name in names],
        "training": [
            quzo_training.train(training, task, grid, progress)
            for task in quzo_training.TASKS
            for grid in training.grids
        ],
        "conditions": {
            "command": command,
            "date": datetime.date.today().isoformat(),
            "plan": dataclasses.asdict(plan),
            "weights": block.size(),
            "training": {
                key: value for key, value in dataclasses.asdict(training).items() if key != "grids"
            },
            "load_average": [load, conditions.load_average()],
            "threads": usable_cores(),
            **conditions.machine(),
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="QuZO's gradient estimators on a small block.")
    add_places(parser, RESULTS)
    chosen = parser.parse_args(arguments)

    def measured(clock: Clock) -> None:
        marked(chosen.page, page.MARK)
        result = measure(Plan(), quzo_training.Plan(), "make report-quzo", clock)
        page.write(chosen.page, chosen.results, result)

    return exit_status(measured)


if __name__ == "__main__":
    sys.exit(main())
