"""P-RGE in plain PyTorch: one query and one sign after another, on the Hugging Face model itself.

Written from the paper (equation 1; Algorithm 2 with q > 1): it shares no code with the passes, the session or
the kernels, except the noise, which is a specification of its own (``core.rng``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zoexport.core import rng
from zoexport.methods.adapted import AdaptedModel, Factors
from zoexport.methods.prge.config import PrgeConfig

Noise = Callable[[int, int, int], Tensor]
"""(tensor id, query, step) to a perturbation."""


class ZerothOrderReference:
    """Zeroth-order SGD on the B matrices of LoRA-FA adapters.

    Args:
        model: the Hugging Face model with the weights to be trained over, already quantized and
            dequantized where the bundle is quantized. Its forward hooks are used, nothing else changes.
        config: of the bundle.
        slots: initial ``lora_A.<module>`` (in, rank) and ``lora_B.<module>`` (rank, out), fp32, in the order of
            the B's tensor ids, which count from 0.
    """

    def __init__(self, model: nn.Module, config: PrgeConfig, slots: Mapping[str, Tensor]) -> None:
        self.adapted = AdaptedModel(model, config.lora_alpha / config.lora_rank)
        self.config = config
        names = [name.removeprefix("lora_B.") for name in slots if name.startswith("lora_B.")]
        self.modules = names
        self.a = {name: slots[f"lora_A.{name}"].clone() for name in names}
        self.b = {name: slots[f"lora_B.{name}"].clone() for name in names}
        self.step_number = 0
        self.pending: tuple[list[float], float] | None = None

    def step(self, batch: Sequence[Any], learning_rate: float) -> dict[str, Any]:
        """One step on a batch of examples (objects with ``candidates`` and ``target``).

        Returns:
            ``losses`` (2q, in the order +1, -1, +2, ...), ``gradients`` (q projected gradients), and every slot of
            a master B ``before`` and ``after`` the update that was pending from the step before.
        """
        before = self.values()
        self.finish()
        after = self.values()
        losses = []
        for query in range(self.config.queries):
            for sign in (1.0, -1.0):
                perturbed = {
                    name: self.b[name] + sign * self.config.eps * self.noise(number, query, name)
                    for number, name in enumerate(self.modules)
                }
                losses.append(self.loss(batch, perturbed))
        gradients = [
            (losses[2 * query] - losses[2 * query + 1]) / (2 * self.config.eps)
            for query in range(self.config.queries)
        ]
        self.pending = (gradients, learning_rate)
        self.step_number += 1
        return {"losses": losses, "gradients": gradients, "before": before, "after": after}

    def follow(
        self, b: Mapping[str, Tensor], gradients: Sequence[float], learning_rate: float
    ) -> None:
        """Go on from another run's state: its master B and the gradients that it has pending."""
        for name in self.modules:
            self.b[name] = b[f"lora_B.{name}"].clone()
        self.pending = (list(gradients), learning_rate) if gradients else None

    def values(self) -> dict[str, Tensor]:
        """A copy of every master B by slot."""
        return {f"lora_B.{name}": b.clone() for name, b in self.b.items()}

    def finished(self) -> dict[str, Tensor]:
        """Every master B by slot, nothing pending."""
        self.finish()
        return self.values()

    def finish(self) -> None:
        """Apply the pending update: B <- B - lr/q * sum over queries of g_j z_j (equation 1)."""
        if self.pending is None:
            return
        gradients, learning_rate = self.pending
        for number, name in enumerate(self.modules):
            total = torch.zeros_like(self.b[name])
            for query, gradient in enumerate(gradients):
                total += gradient * self.noise(number, query, name, self.step_number - 1)
            self.b[name] -= learning_rate / self.config.queries * total
        self.pending = None

    def noise(self, number: int, query: int, name: str, step: int | None = None) -> Tensor:
        """z of one adapter, query and step."""
        b = self.b[name]
        values = rng.normals(
            self.config.seed,
            number,
            query,
            self.step_number if step is None else step,
            b.numel(),
        )
        return torch.from_numpy(values).view_as(b)

    def loss(self, batch: Sequence[Any], b: Mapping[str, Tensor]) -> float:
        """The mean loss of a batch."""
        with torch.no_grad():
            losses = [
                float(self.adapted.loss(example, self.config.loss, self.factors(b)))
                for example in batch
            ]
        return sum(losses) / len(batch)

    def factors(self, b: Mapping[str, Tensor]) -> Factors:
        """The frozen A of every adapter, and ``b`` by module."""
        return {name: (self.a[name], b[name]) for name in self.modules}
