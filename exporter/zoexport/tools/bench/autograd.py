"""The first-order baseline: LoRA steps of the plain Hugging Face model in PyTorch, fp32, by autograd.

The model is transformers' own with its fused attention; each adapted layer adds (alpha / r) x A B with both matrices
trained; logits of all positions are computed, as ``model(input_ids)`` does; the loss is the mean cross-entropy over the
positions that have a label. Activations are kept from the forward pass to the backward one, nothing is computed again.
Then clipping by the norm over all matrices and AdamW, as a bundle of ``mebp`` does by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zoexport.core.lora_scaling import LoraScaling
from zoexport.tools.bench.eager import Clock, Timed, adapter


class EagerFirstOrder:
    """Steps on one model with adapters; ``close`` takes the adapters off again.

    Args:
        model: a causal language model in eval mode, fp32.
        slots: ``lora_A.<module>`` (in, rank) and ``lora_B.<module>`` (rank, out), fp32.
        scaling: what each adapter's output is multiplied by.
        learning_rate: of a step.
        optimizer: ``adamw`` or ``sgd``.
        momentum: of sgd.
        weight_decay: of the adapters.
        max_grad_norm: the largest norm of all gradients together; 0 is off.
    """

    def __init__(
        self,
        model: nn.Module,
        slots: Mapping[str, Tensor],
        *,
        scaling: LoraScaling,
        learning_rate: float,
        optimizer: str = "adamw",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
    ) -> None:
        self.model = model.requires_grad_(False)
        self.max_grad_norm = max_grad_norm
        self.slots = {name: value.clone().requires_grad_() for name, value in slots.items()}
        self._handles = []
        for name in slots:
            if name.startswith("lora_B."):
                module = name.removeprefix("lora_B.")
                hook = adapter(
                    self.slots[f"lora_A.{module}"], self.slots[name], scaling.scale_of(module)
                )
                self._handles.append(model.get_submodule(module).register_forward_hook(hook))
        options: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay}
        values = list(self.slots.values())
        self._optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(values, **options)
            if optimizer == "adamw"
            else torch.optim.SGD(values, momentum=momentum, **options)
        )

    def step(self, tokens: Tensor, labels: Tensor) -> Timed:
        """Run one step.

        Args:
            tokens: int64 (batch, max_length). labels: same, -100 = ignored; equal count per row.
        """
        clock = Clock()
        logits = self.model(input_ids=tokens, use_cache=False).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        clock.lap("forward")
        loss.backward()
        clock.lap("backward")
        if self.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.slots.values(), self.max_grad_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        clock.lap("update")
        return Timed([float(loss.detach())], sum(clock.parts.values()), clock.parts)

    def close(self) -> None:
        """Restore the model."""
        for handle in self._handles:
            handle.remove()
