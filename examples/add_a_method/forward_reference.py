"""The method of ``forward.py`` in plain PyTorch, one forward pass after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from zoexport.core.sizes import sizes
from zoexport.methods.reference.zeroth_order import AdaptersOrWeightsReference


class ForwardReference(AdaptersOrWeightsReference):
    """B of every adapter; those of the last layer are the second group."""

    def differences(self, batch: Sequence[Any]) -> tuple[list[float], list[float]]:
        """Return the losses of a step in the order of evaluation, and the differences per query."""
        count, eps = self.config.directions, self.config.eps
        means, losses, second = [], [], []
        for outer in range(count + 1):
            first = self._moved(False, None if outer == 0 else outer - 1)
            found = []
            for inner in range(count + 1):
                along = None if inner == 0 else outer * count + inner - 1
                found.append(self.loss(batch, first | self._moved(True, along)))
            means.append(sum(found) / len(found))
            losses += found
            second += [(loss - found[0]) / eps for loss in found[1:]]
        return losses, [(mean - means[0]) / eps for mean in means[1:]] + second

    def updated(self, name: str, gradients: Sequence[float], learning_rate: float) -> Tensor:
        """Return a weight after the step, from the differences of its own group."""
        count = self.config.directions
        own = gradients[count:] if self._in_second(name) else gradients[:count]
        return super().updated(name, own, learning_rate)

    def _moved(self, second: bool, along: int | None) -> dict[str, Tensor]:
        return {
            name: value
            if along is None
            else value + self.config.eps * self.noise(name, along, self.step_number)
            for name, value in self.masters.items()
            if self._in_second(name) == second
        }

    def _in_second(self, name: str) -> bool:
        return f"layers.{sizes(self.adapted.model.config).num_layers - 1}." in name
