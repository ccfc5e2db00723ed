"""Figure 3(b) of QuZO on a small block: integer weights that Q-RGE1 and Q-RGE2 train, as docs/methods.md says."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from research.quzo import block as quzo_block
from research.quzo.block import Block, Loss
from research.quzo.rounding import Rounding
from zoexport.core.progress import Progress

ESTIMATORS = ("Q-RGE1", "Q-RGE2")
MOST = 255  # of one update's whole steps, before the clamp to the grid


@dataclasses.dataclass(frozen=True)
class Grid:
    """Integers least .. most and how they are trained.

    Attributes:
        bits: of the weights and of the perturbations.
        eps: standard deviation of a perturbation before rounding, in grid steps.
        rates: learning rates, in grid steps.
    """

    bits: int
    least: int
    most: int
    eps: float
    rates: tuple[float, ...]

    @property
    def rounding(self) -> Rounding:
        """s_u = eps: a perturbation is a whole number of grid steps."""
        return Rounding(2 ** (self.bits - 1) - 1, self.eps)


TASKS = ("labels", "outputs")
"""What is learned of a teacher: one number a sequence, as in fine-tuning, or everything that the block gives."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is trained.

    Attributes:
        examples, tokens: of the one batch, which every step sees.
        change: the teacher's weights are (start + change * noise) / sqrt(1 + change^2).
        every: steps after which the loss is noted; divides ``steps``.
    """

    grids: tuple[Grid, ...] = (
        Grid(8, -127, 127, eps=4.0, rates=(100.0, 300.0, 1000.0)),
        Grid(4, -8, 7, eps=0.25, rates=(0.01, 0.03, 0.1)),
        Grid(4, -8, 7, eps=1.0, rates=(0.01, 0.03, 0.1)),
    )
    block: Block = dataclasses.field(default_factory=Block)
    examples: int = 16
    tokens: int = 4
    change: float = 0.5
    steps: int = 1000
    every: int = 40
    queries: int = 4
    seeds: int = 5


def step(
    loss: Loss, weights: Tensor, grid: Grid, rates: Tensor, queries: int, noise: torch.Generator
) -> Tensor:
    """One of Q-RGE1 (``weights[0]``) and of Q-RGE2 (``weights[1]``): equations 14 and 15.

    All runs of a seed have the same random numbers.

    Args:
        loss: of grid weights (d,).
        weights: whole numbers (2, rates, seeds, d).
        rates: (rates, 1, 1).
    """
    shape = (queries, 1, *weights.shape[2:])
    normal = torch.randn(shape, generator=noise, dtype=weights.dtype)
    first, second = (
        grid.rounding.levels(
            normal, torch.rand(shape, generator=noise, dtype=weights.dtype)
        ).unsqueeze(1)
        for _ in range(2)
    )
    # (2 signs, queries, 2 estimators, rates, seeds, d)
    moved = torch.stack([weights + first, weights - first]).clamp(grid.least, grid.most)
    up, down = vmap(loss)(moved.flatten(0, -2)).view(moved.shape[:-1])
    gradient = (up - down) / (2 * grid.eps)
    factor = ((rates.squeeze(-1) / queries) * gradient / grid.eps).unsqueeze(-1)
    direction = torch.cat([first, second], 1)  # (queries, 2, 1, seeds, d)
    change = factor * direction
    chance = torch.rand(shape, generator=noise, dtype=weights.dtype).unsqueeze(1)
    whole = torch.floor(change.abs() + chance).clamp(max=MOST) * change.sign()
    return (weights - whole.sum(0)).clamp(grid.least, grid.most)


def train(plan: Plan, task: str, grid: Grid, progress: Progress) -> dict[str, Any]:
    """Every rate with every seed, by both estimators.

    Args:
        plan: what is trained.
        task: one of :data:`TASKS`.
        grid: one of the plan's.
        progress: called with what is being done, and how much of that is done.

    Returns:
        The grid's fields and ``task``; ``losses`` (2 estimators, rates, seeds, notes), ``untrained``, and ``rounded``,
        the loss of the teacher's weights rounded to the start's grid; ``square``, E[u1^2] by theory.
    """
    block, kind = plan.block, torch.float32
    start = block.weights(1, kind)
    teacher = (start + plan.change * block.weights(2, kind)) / (1 + plan.change**2) ** 0.5
    scales = block.row_maxima(start) / grid.most
    inputs = quzo_block.normal(3, plan.examples, plan.tokens, block.width, dtype=kind)
    function = block.labels if task == "labels" else block.outputs
    real = quzo_block.distance(function, inputs, function(teacher, inputs))

    def loss(integers: Tensor) -> Tensor:
        return real(integers * scales)

    def rounded(vector: Tensor) -> Tensor:
        return (vector / scales).round().clamp(grid.least, grid.most)

    rates = torch.tensor(grid.rates, dtype=kind).view(-1, 1, 1)
    shape = (len(ESTIMATORS), len(grid.rates), plan.seeds, block.size())
    weights = rounded(start).expand(shape)
    noise = torch.Generator().manual_seed(4)
    notes = []
    for done in range(plan.steps + 1):
        if done % plan.every == 0:
            notes.append(vmap(loss)(weights.flatten(0, -2)).view(shape[:-1]))
            progress(f"training {task}, INT{grid.bits}, eps {grid.eps:g}", done / plan.steps)
        if done < plan.steps:
            weights = step(loss, weights, grid, rates, plan.queries, noise)
    naive, _ = grid.rounding.moments()
    return {
        **dataclasses.asdict(grid),
        "task": task,
        "square": naive.square,
        "untrained": float(loss(rounded(start))),
        "rounded": float(loss(rounded(teacher))),
        "losses": torch.stack(notes, -1).double().round(decimals=6).tolist(),
    }
