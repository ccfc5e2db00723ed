"""Zeroth-order momentum, Adam and Muon in plain PyTorch, as in docs/methods.md."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from zoexport.methods.reference.zeroth_order import AdaptersOrWeightsReference
from zoexport.methods.whole import WholeOrLayers


class MomentsReference(AdaptersOrWeightsReference):
    """Zeroth-order SGD, or moments recomputed in each update from the last steps' gradients."""

    def __init__(
        self, model: nn.Module, config: WholeOrLayers, slots: Mapping[str, Tensor]
    ) -> None:
        super().__init__(model, config, slots)
        self.past: list[list[float]] = []
        """Projected gradients of the last steps, newest first."""

    def finish(self) -> None:
        """Apply the pending update and keep its gradients for later updates."""
        if self.pending is not None:
            self.past = [self.pending[0], *self.past][: self.config.horizon]
        super().finish()

    def updated(self, name: str, gradients: Sequence[float], learning_rate: float) -> Tensor:
        """Return a master after a step, from the averages m of G and v of its squares.

        w - a m; w - a m / (sqrt(v) + 1e-8) with Adam; w - a U V^T with Muon for m = U S V^T
        (approximately); a is the learning rate.
        """
        if self.config.optimizer == "sgd":
            return super().updated(name, gradients, learning_rate)
        value = self.masters[name]
        estimates = [
            self.estimate(name, known, self.step_number - 1 - age)
            for age, known in enumerate(self.past)
        ]
        mean = _average(estimates, self.config.beta1)
        if self.config.optimizer == "adam":
            squares = _average([one * one for one in estimates], self.config.beta2)
            # torch's float32 square root uses MKL and may not be the nearest number.
            mean = mean / (squares.double().sqrt().float() + 1e-8)
        if self.config.optimizer == "muon":
            mean = orthogonal(mean)
        return value - learning_rate * mean

    def estimate(self, name: str, gradients: Sequence[float], step: int) -> Tensor:
        """Return G of a step: the mean over queries of g_j z_j."""
        moves = [g * self.noise(name, query, step) for query, g in enumerate(gradients)]
        return functools.reduce(torch.add, moves) / len(moves)


def orthogonal(matrix: Tensor) -> Tensor:
    """Approximate U V^T of U S V^T by five steps of Muon's Newton-Schulz iteration, in float64.

    X <- 3.4445 X - 4.775 X X^T X + 2.0315 X (X^T X)^2, starting from the matrix divided by its
    Frobenius norm (Jordan et al. 2024).
    """
    x = matrix.double()
    norm = x.norm()
    if norm == 0:
        return matrix
    x = x / norm
    turned = x.shape[0] < x.shape[1]
    x = x.T if turned else x
    for _ in range(5):
        gram = x.T @ x
        x = 3.4445 * x + x @ (-4.7750 * gram + 2.0315 * gram @ gram)
    return (x.T if turned else x).float().contiguous()


def _average(values: Sequence[Tensor], beta: float) -> Tensor:
    """Return the weighted average of values, with weights 1, beta, beta^2, ..."""
    weights = [1.0]
    while len(weights) < len(values):
        weights.append(weights[-1] * beta)
    parts = [weight / sum(weights) * value for weight, value in zip(weights, values, strict=True)]
    return functools.reduce(torch.add, parts)
