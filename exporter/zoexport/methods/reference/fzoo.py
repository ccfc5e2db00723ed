"""FZOO in plain PyTorch, written from the paper (Dang et al., arXiv 2506.09034.

See docs/methods.md).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zoexport.core import rng
from zoexport.methods.reference.moments import MomentsReference


class FzooReference(MomentsReference):
    """Forward differences along Rademacher directions, divided by the deviation of the perturbed losses."""

    def differences(self, batch: Sequence[Any]) -> tuple[list[float], list[float]]:
        """Return l_0 of w, l_j of w + eps u_j, and g_j = (l_j - l_0) / sigma (0 if sigma is 0).

        sigma is the sample standard deviation of l_1 .. l_q (divisor q - 1).
        """
        unperturbed = self.loss(batch, self.masters)
        moved = [
            self.loss(batch, self.perturbed(query, 1.0)) for query in range(self.config.num_queries)
        ]
        sigma = statistics.stdev(moved)
        gradients = [(loss - unperturbed) / sigma if sigma else 0.0 for loss in moved]
        return [unperturbed, *moved], gradients

    def noise(self, name: str, query: int, step: int) -> Tensor:
        """Return u of one master, query and step: +1 or -1."""
        value = self.masters[name]
        number = list(self.masters).index(name)
        values = rng.signs(self.config.seed, number, query, step, value.numel())
        return torch.from_numpy(values).view_as(value)
