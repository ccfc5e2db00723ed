"""MeBP in plain PyTorch: backpropagation through the Hugging Face model itself.

The paper's algorithm changes where activations are kept and when they are computed, but not the
gradients (section 3). The reference therefore uses autograd over the whole model, torch's
optimizers and torch's clipping, all in float64: autograd in fp32 differs by up to 1.5e-4 from that,
more than parity allows the device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zoexport.methods.mebp import MebpConfig
from zoexport.methods.reference.adapted import AdaptedModel, Added, Dropped, lora


class FirstOrderReference:
    """AdamW or SGD on both matrices of LoRA adapters.

    Args:
        model: Hugging Face model with the frozen weights, already quantized and dequantized if the
            bundle is quantized. It becomes float64, and its forward hooks are used.
        config: settings of the bundle.
        slots: initial ``lora_A.<module>`` (in, rank) and ``lora_B.<module>`` (rank, out).
    """

    def __init__(self, model: nn.Module, config: MebpConfig, slots: Mapping[str, Tensor]) -> None:
        self.adapted = AdaptedModel(model.requires_grad_(False).double())
        self.config = config
        self.slots = {
            name: value.detach().to(torch.float64, copy=True).requires_grad_()
            for name, value in slots.items()
        }
        self.step_number = 0
        self.initial = self.values() if config.loss == "dpo" else {}
        values = list(self.slots.values())
        options: dict[str, Any] = {
            "lr": config.learning_rate,
            "weight_decay": config.weight_decay,
        }
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(values, **options)
            if config.optimizer == "adamw"
            else torch.optim.SGD(values, momentum=config.momentum, **options)
        )

    def step(
        self,
        batch: Sequence[Any],
        learning_rate: float,
        applied: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Any]:
        """Apply one update for a batch of examples (objects with ``candidates`` and ``target``).

        Args:
            applied: gradients by parameter to use instead of its own, from another run that it
                follows.

        Returns:
            ``losses`` (the one mean loss), ``gradients`` by parameter before clipping, and the
            parameters ``before`` and ``after`` the update.
        """
        before = self.values()
        self.optimizer.zero_grad()
        losses = []
        for number, example in enumerate(batch):
            loss = self.loss(example, self._dropped(number))
            (loss / len(batch)).backward()
            losses.append(float(loss.detach()))
        gradients = {name: _gradient(value).clone() for name, value in self.slots.items()}
        for name, gradient in (applied or {}).items():
            self.slots[name].grad = gradient.to(torch.float64, copy=True)
        if self.config.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.slots.values(), self.config.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.step_number += 1
        return {
            "losses": [sum(losses) / len(losses)],
            "gradients": gradients,
            "before": before,
            "after": self.values(),
        }

    def follow(self, values: Mapping[str, Tensor]) -> None:
        """Continue from the parameters of another run."""
        with torch.no_grad():
            for name, value in self.slots.items():
                value.copy_(values[name])

    def values(self) -> dict[str, Tensor]:
        """Return a copy of every parameter, float64."""
        return {name: value.detach().clone() for name, value in self.slots.items()}

    def finished(self) -> dict[str, Tensor]:
        """Return a copy of every parameter: no update is ever pending."""
        return self.values()

    def loss(self, example: Any, dropped: Dropped | None = None) -> Tensor:
        """Return the loss of one example, float64."""
        reference: list[Tensor] = []
        if self.config.loss == "dpo":
            with torch.no_grad(), _in_float64():
                reference = self.adapted.scores(example, lora(self.initial, self.config))
        with _in_float64():
            return self.adapted.loss(example, self.config, self.added(dropped), reference)

    def added(self, dropped: Dropped | None = None) -> Added:
        """Return the adapter of every layer."""
        return lora(self.slots, self.config, dropped)

    def _dropped(self, example: int) -> Dropped | None:
        share = self.config.lora_dropout
        return Dropped(share, self.config.seed, self.step_number, example) if share else None


@contextlib.contextmanager
def _in_float64() -> Iterator[None]:
    """Make new tensors float64 inside the context: XGLM's float64 minimum fits no other type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _gradient(value: Tensor) -> Tensor:
    return torch.zeros_like(value) if value.grad is None else value.grad
