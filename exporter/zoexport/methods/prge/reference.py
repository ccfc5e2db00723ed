"""P-RGE in plain PyTorch, written from the paper (equation 1; Algorithm 2 with q > 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from zoexport.methods.adapted import LORA_B, Added, lora
from zoexport.methods.prge.config import PrgeConfig
from zoexport.methods.zeroth_order import ZerothOrderReference


class PrgeReference(ZerothOrderReference):
    """Zeroth-order SGD on the B matrices of LoRA-FA adapters.

    Args:
        model, config: see :class:`ZerothOrderReference`.
        slots: initial ``lora_A.<module>`` (in, rank) and ``lora_B.<module>`` (rank, out), fp32, in the order of
            the B's tensor ids.
    """

    def __init__(self, model: nn.Module, config: PrgeConfig, slots: Mapping[str, Tensor]) -> None:
        masters = {name: value for name, value in slots.items() if name.startswith(LORA_B)}
        super().__init__(model, config, masters)
        self.frozen = {name: value.clone() for name, value in slots.items() if name not in masters}

    def added(self, values: Mapping[str, Tensor]) -> Added:
        """The adapter of every layer, A frozen."""
        return lora({**self.frozen, **values}, self.config)


class MezoReference(PrgeReference):
    """MeZO, which differs from P-RGE in schedule alone, not in numbers, but for forward differences."""

    def differences(self, batch: Sequence[Any]) -> tuple[list[float], list[float]]:
        """With ``difference=forward`` the unperturbed loss and q others, and g_j = (l(w + eps z_j) - l(w)) / eps."""
        if self.config.difference == "central":
            return super().differences(batch)
        unperturbed = self.loss(batch, self.masters)
        moved = [
            self.loss(batch, self.perturbed(query, 1.0)) for query in range(self.config.queries)
        ]
        gradients = [(loss - unperturbed) / self.config.eps for loss in moved]
        return [unperturbed, *moved], gradients
