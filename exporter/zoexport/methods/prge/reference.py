"""P-RGE in plain PyTorch, written from the paper (equation 1; Algorithm 2 with q > 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from zoexport.methods.adapted import Added, low_rank
from zoexport.methods.prge.config import PrgeConfig
from zoexport.methods.zeroth_order import ZerothOrderReference

_B = "lora_B."


class PrgeReference(ZerothOrderReference):
    """Zeroth-order SGD on the B matrices of LoRA-FA adapters.

    Args:
        model, config: see :class:`ZerothOrderReference`.
        slots: initial ``lora_A.<module>`` (in, rank) and ``lora_B.<module>`` (rank, out), fp32, in the order of
            the B's tensor ids.
    """

    def __init__(self, model: nn.Module, config: PrgeConfig, slots: Mapping[str, Tensor]) -> None:
        super().__init__(
            model, config, {name: value for name, value in slots.items() if name.startswith(_B)}
        )
        self.a = {name: value.clone() for name, value in slots.items() if name not in self.masters}

    def added(self, values: Mapping[str, Tensor]) -> Added:
        """The adapter of every layer, A frozen."""
        scaling = self.config.lora_alpha / self.config.lora_rank
        modules = [name.removeprefix(_B) for name in values]
        return {
            module: low_rank(self.a[f"lora_A.{module}"], values[f"{_B}{module}"], scaling)
            for module in modules
        }


class ForwardDifferences(PrgeReference):
    """MeZO with forward differences, whose unperturbed loss serves all queries of a step."""

    def differences(self, batch: Sequence[Any]) -> tuple[list[float], list[float]]:
        """The losses, the unperturbed one first, and g_j = (l(w + eps z_j) - l(w)) / eps."""
        unperturbed = self.loss(batch, self.masters)
        moved = [
            self.loss(batch, self.perturbed(query, 1.0)) for query in range(self.config.queries)
        ]
        gradients = [(loss - unperturbed) / self.config.eps for loss in moved]
        return [unperturbed, *moved], gradients
