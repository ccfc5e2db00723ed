"""Stochastic rounding of perturbations (QuZO, equation 5), and what theory says of the two estimators that use it.

With u standard normal and Q a rounding of it, u1 = Q / s. All coordinates are independent and symmetric, so for a
linear loss both estimators have the mean a g, where g is the gradient:

    Q-RGE1 (equation 3)    a = E[u1^2] = E[clamp(u)^2] + E[f (1 - f)] / s^2     f = s u - floor(s u), within the levels
    Q-RGE2 (equation 8)    a = E[u1 u2] = E[clamp(u)^2]                         clamp: to -L / s .. L / s

The mean of f (1 - f) is 1/6 where s is well above 1.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from zoexport.core.grid import pair_probabilities


@dataclasses.dataclass(frozen=True)
class Moments:
    """Moments of one coordinate's two factors, the perturbation p and the direction q.

    Attributes:
        mean: E[p q], the estimator's mean over the gradient.
        square: E[p^2] = E[q^2].
        fourth: E[p^2 q^2].
    """

    mean: float
    square: float
    fourth: float

    def error(self, size: int, directions: int) -> float:
        """The relative l2 error of a mean over directions, of a linear loss of ``size`` weights.

        The root of (E|estimate - gradient|^2 / |gradient|^2); of one direction E|q (p g)|^2 is
        (fourth + (size - 1) square^2) |g|^2.
        """
        variance = self.fourth + (size - 1) * self.square**2 - self.mean**2
        return float(((self.mean - 1) ** 2 + variance / directions) ** 0.5)


UNROUNDED = Moments(mean=1.0, square=1.0, fourth=3.0)


@dataclasses.dataclass(frozen=True)
class Rounding:
    """To whole numbers -limit .. limit of ``scale`` u (s_u of equation 5)."""

    limit: int
    scale: float

    @classmethod
    def of_bits(cls, bits: int) -> Rounding:
        """All levels of that many bits, over three standard deviations to each side."""
        limit = 2 ** (bits - 1) - 1
        return cls(limit, limit / 3)

    def levels(self, normal: Tensor, uniform: Tensor) -> Tensor:
        """Q(u) of standard normal numbers, rounded up where numbers of [0, 1) say so; shapes are equal."""
        return torch.floor(normal * self.scale + uniform).clamp(-self.limit, self.limit)

    def perturbation(self, normal: Tensor, uniform: Tensor) -> Tensor:
        """u1 = Q(u) / s."""
        return self.levels(normal, uniform) / self.scale

    def moments(self) -> tuple[Moments, Moments]:
        """Those of Q-RGE1 (both factors are u1) and of Q-RGE2 (u1, u2), sums over the levels that a pair can have."""
        pairs = pair_probabilities(self.scale, self.limit).items()

        def mean(first: int, second: int) -> float:
            """E[u1^first u2^second]."""
            total = sum(chance * a**first * b**second for (a, b), chance in pairs)
            return total / self.scale ** (first + second)

        square = mean(2, 0)
        return Moments(square, square, mean(4, 0)), Moments(mean(1, 1), square, mean(2, 2))
