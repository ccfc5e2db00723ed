"""Steps of several runs of one method at once: they differ in rate and seed, and see no other of each other."""

from __future__ import annotations

import abc
import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from research.accelerator.llama import Llama, Weights
from research.accelerator.tasks import Batch, Task
from research.accelerator.trained import Adapters, Integers, Trained, generator


@dataclasses.dataclass(frozen=True)
class Lane:
    """One of the runs."""

    rate: float
    seed: int


class Runs(abc.ABC):
    """Runs of a method.

    Args:
        model, task: the same for all. lanes: the runs.
        config: of the method, as a bundle's: batch, queries, eps.
    """

    def __init__(self, model: Llama, task: Task, lanes: Sequence[Lane], config: Any) -> None:
        self._model, self.task, self.lanes, self._config = model, task, lanes, config
        self._seeds = sorted({lane.seed for lane in lanes})
        device = model.inverse.device
        self._own = torch.tensor([self._seeds.index(lane.seed) for lane in lanes], device=device)
        self._rates = torch.tensor([lane.rate for lane in lanes], device=device)
        self.steps = 0

    @abc.abstractmethod
    def step(self) -> Tensor:
        """One step; the losses of its copies (lanes, copies), float64."""

    @abc.abstractmethod
    def weights(self) -> Weights:
        """As trained so far, a group a run."""

    @torch.no_grad()
    def evaluated(self, name: str) -> tuple[list[float], list[float]]:
        """Mean loss and share of right predictions of each run on one of the task's parts."""
        return self.task.evaluated(self._model, self.weights(), len(self.lanes), name)

    def _along(self, z: Tensor, number: int) -> list[Tensor]:
        """Direction ``number`` of each run, of z (seeds, directions, n)."""
        return [z[own, number] for own in self._own.tolist()]

    def _central(self, losses: Tensor) -> Tensor:
        """(l(+z) - l(-z)) / (2 eps) of pairs (runs, 2 k)."""
        return ((losses[:, 0::2] - losses[:, 1::2]) / (2 * self._config.eps)).float()

    def _batch(self) -> Batch:
        batch = self.task.batch(self._seeds, self.steps, self._config.batch_size)
        return batch.of(self._own)


class ZerothOrder(Runs):
    """SPSA's central differences, or FZOO's, along q directions of what is trained."""

    def __init__(
        self,
        model: Llama,
        task: Task,
        lanes: Sequence[Lane],
        config: Any,
        trained: Trained,
        *,
        one_sided: bool = False,
    ) -> None:
        super().__init__(model, task, lanes, config)
        self._trained, self._one_sided = trained, one_sided
        self.values = trained.initial.repeat(len(lanes), 1)
        self._noise = trained.noise(self._seeds, config.num_queries, signs=one_sided)
        self._reach: float = config.eps
        """How far copies are moved along a direction."""
        self._past: deque[Tensor] = deque(maxlen=getattr(config, "horizon", 1))

    @torch.no_grad()
    def step(self) -> Tensor:
        """Losses are of l_0 and q others (FZOO), or of +z_1, -z_1, +z_2, ... (SPSA)."""
        z, batch = self._directions(), self._batch()
        losses = torch.cat(
            [
                self.task.losses(self._model, weights, batch.repeated(copies))
                .view(len(self.lanes), copies)
                .double()
                for copies, weights in self._copies(z)
            ],
            1,
        )
        self.update(self.gradients(losses), z)
        self.steps += 1
        return losses

    def gradients(self, losses: Tensor) -> Tensor:
        """Projected ones (lanes, q) of a step's losses."""
        if self._one_sided:
            moved = losses[:, 1:]
            return ((moved - losses[:, :1]) / moved.std(1, keepdim=True)).float()
        return self._central(losses)

    def update(self, gradients: Tensor, z: Tensor) -> None:
        """w - learning_rate / q sum of g z; or by averages of the last steps' estimates (docs/methods.md)."""
        estimate = torch.stack(
            [row @ z[own] for row, own in zip(gradients, self._own.tolist(), strict=True)]
        ) / len(gradients[0])
        optimizer = getattr(self._config, "optimizer", "sgd")
        if optimizer != "sgd":
            self._past.appendleft(estimate)
            estimate = self._average(optimizer)
        self.values = self._trained.settled(self.values - self._rates[:, None] * estimate)

    def weights(self) -> Weights:
        """Those of the values, not perturbed."""
        return self._trained.weights(self.values)

    def _directions(self) -> Any:
        return self._noise(self.steps)

    def _copies(self, z: Tensor) -> Iterator[tuple[int, Weights]]:
        """Perturbed copies, as many a forward pass as fit."""
        queries = range(self._config.num_queries)
        if self._one_sided:
            moves = [(0, 0.0), *((query, self._reach) for query in queries)]
        else:
            moves = [(query, side * self._reach) for query in queries for side in (1, -1)]
        if not self._trained.together:
            for query, scale in moves:
                yield 1, self._moved(z, query, scale)
            return
        order = torch.tensor([query for query, _ in moves], device=z.device)
        scales = torch.tensor([scale for _, scale in moves], device=z.device)
        moved = self.values[:, None] + scales[:, None] * z[self._own][:, order]
        yield len(moves), self._trained.weights(moved.flatten(0, 1))

    def _moved(self, z: Tensor, query: int, scale: float) -> Weights:
        moved = self._trained.moved(self.values, self._along(z, query), scale)
        return self._trained.weights(moved)

    def _average(self, optimizer: str) -> Tensor:
        mean = _average(self._past, self._config.beta1)
        if optimizer == "adam":
            squares = _average([one.square() for one in self._past], self._config.beta2)
            mean = mean / (squares.sqrt() + 1e-8)
        if optimizer == "muon":
            assert isinstance(self._trained, Adapters)
            mean = _orthogonal(self._trained.parts(mean))
        return mean


def _average(values: Sequence[Tensor] | deque[Tensor], beta: float) -> Tensor:
    """Of values of which each counts ``beta`` of the one before it."""
    weights = [beta**age for age in range(len(values))]
    total = torch.zeros_like(values[0])
    for weight, value in zip(weights, values, strict=True):
        total.add_(value, alpha=weight / sum(weights))
    return total


def _orthogonal(parts: Mapping[str, Tensor]) -> Tensor:
    """Nearly U V^T of each matrix U S V^T (groups, rank, outputs), by Muon's iteration; flat (groups, n)."""
    shapes = {part.shape for part in parts.values()}
    found: dict[str, Tensor] = {}
    for shape in shapes:
        names = [name for name, part in parts.items() if part.shape == shape]
        x = torch.stack([parts[name] for name in names]).double()
        norm = x.norm(dim=(-2, -1), keepdim=True)
        x = x / norm.where(norm > 0, 1.0)
        turned = x.shape[-2] > x.shape[-1]
        x = x.mT if turned else x
        for _ in range(5):
            gram = x @ x.mT
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        x = (x.mT if turned else x).float()
        found.update(zip(names, x, strict=True))
    return torch.cat([found[name].flatten(1) for name in parts], 1)


class Rounded(ZerothOrder):
    """QuZO: directions and updates are rounded at random to whole grid steps.

    A direction has two roundings of the same normal numbers: one for the losses, and one, or with ``q-rge1`` the same
    one again, for the update.
    """

    def __init__(
        self, model: Llama, task: Task, lanes: Sequence[Lane], config: Any, trained: Integers
    ) -> None:
        super().__init__(model, task, lanes, config, trained)
        self._reach = 1.0
        self._limits = trained.limits
        self._second: Tensor | None = None

    def gradients(self, losses: Tensor) -> Tensor:
        """c_i of equation 13, over eps: a direction is a whole number of steps, and eps z on average."""
        return super().gradients(losses) / self._config.eps

    def update(self, gradients: Tensor, z: Tensor) -> None:
        """clamp(w - sum over queries of S(learning_rate / q c_i Q2(u_i)))."""
        assert self._second is not None
        second = z if self._config.estimator == "q-rge1" else self._second
        for lane, own in enumerate(self._own.tolist()):
            drawn = generator(z.device, self.lanes[lane].seed, (1 << 30) + self.steps)
            moved = torch.zeros_like(self.values[lane])
            for query, gradient in enumerate(gradients[lane]):
                size = self._rates[lane] / len(gradients[lane]) * gradient
                move = second[own, query] * size.clamp(-255, 255)
                moved += _rounded(move, drawn).clamp_(-255, 255)
            self.values[lane] = (self.values[lane] - moved).clamp_(*self._limits)

    def _directions(self) -> Tensor:
        drawn = self._noise(self.steps).mul_(self._config.eps)
        most = (1 << (self._config.perturbation_bits - 1)) - 1
        first, second = torch.empty_like(drawn), torch.empty_like(drawn)
        for number, seed in enumerate(self._seeds):
            source = generator(drawn.device, seed, (1 << 29) + self.steps)
            for out in (first, second):
                out[number] = _rounded(drawn[number], source).clamp_(-most, most)
        self._second = second
        return first


def _rounded(value: Tensor, source: torch.Generator) -> Tensor:
    """Whole numbers whose mean is ``value``."""
    whole = value.floor()
    return whole + (torch.rand(value.shape, generator=source, device=value.device) < value - whole)


class FirstOrder(Runs):
    """AdamW on both matrices of the adapters, with clipped gradients (what MeBP computes)."""

    def __init__(
        self, model: Llama, task: Task, lanes: Sequence[Lane], config: Any, trained: Adapters
    ) -> None:
        super().__init__(model, task, lanes, config)
        self._trained = trained
        self._b = trained.initial.repeat(len(lanes), 1).requires_grad_()
        self._a = {name: a.requires_grad_() for name, a in trained.firsts(len(lanes)).items()}
        self._moments = [
            (torch.zeros_like(value), torch.zeros_like(value)) for value in self._values()
        ]

    def step(self) -> Tensor:
        """A run has one loss a step."""
        losses = self.task.losses(self._model, self.weights(), self._batch())
        values = self._values()
        gradients = torch.autograd.grad(losses.sum(), values)
        with torch.no_grad():
            squares = [gradient.flatten(1).double().square().sum(1) for gradient in gradients]
            norms = torch.stack(squares).sum(0).sqrt()
            factor = (self._config.max_grad_norm / (norms + 1e-6)).clamp(max=1).float()
            self.steps += 1
            for value, gradient, moments in zip(values, gradients, self._moments, strict=True):
                self._adam(value, gradient * _like(factor, gradient), *moments)
        return losses.detach().double()[:, None]

    def _adam(self, value: Tensor, gradient: Tensor, mean: Tensor, square: Tensor) -> None:
        mean.lerp_(gradient, 0.1)
        square.lerp_(gradient.square(), 0.001)
        size = (square / (1 - 0.999**self.steps)).sqrt() + 1e-8
        value -= _like(self._rates, value) * (mean / (1 - 0.9**self.steps)) / size

    def weights(self) -> Weights:
        """Both matrices of each run."""
        return self._trained.weights(self._b, self._a)

    def _values(self) -> list[Tensor]:
        return [self._b, *self._a.values()]


def _like(lanes: Tensor, value: Tensor) -> Tensor:
    return lanes.view(-1, *[1] * (value.dim() - 1))
