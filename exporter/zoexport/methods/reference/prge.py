"""P-RGE in plain PyTorch, written from the paper (equation 1; Algorithm 2 with q > 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zoexport.methods.reference.moments import MomentsReference


class PrgeReference(MomentsReference):
    """SPSA on the B matrices of LoRA-FA adapters."""


class MezoReference(MomentsReference):
    """MeZO: same numbers as P-RGE in another schedule, except with forward differences."""

    def differences(self, batch: Sequence[Any]) -> tuple[list[float], list[float]]:
        """Return the losses and the projected gradients.

        With ``difference=forward``: the unperturbed loss and q others, and g_j = (l(w + eps z_j) -
        l(w)) / eps.
        """
        if self.config.difference == "central":
            return super().differences(batch)
        unperturbed = self.loss(batch, self.masters)
        moved = [
            self.loss(batch, self.perturbed(query, 1.0)) for query in range(self.config.num_queries)
        ]
        gradients = [(loss - unperturbed) / self.config.eps for loss in moved]
        return [unperturbed, *moved], gradients
