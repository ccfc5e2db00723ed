"""The baseline: zeroth-order LoRA-FA steps of the plain Hugging Face model in PyTorch, fp32.

MeZO's step (Algorithm 1 of the MeZO paper, which P-RGE's paper takes as its sequential baseline), on the B matrices:
for each query perturb B in place by +eps z, run the model, perturb by -2 eps z, run the model, perturb by +eps z. z is
never stored: each pass over the adapters makes it again from the query's seed. Then B -= learning_rate / q * g z with z
made once more. The model is transformers' own with its fused attention, under ``torch.no_grad``; each adapted layer
adds (alpha / r) x A B; logits of all positions are computed, as ``model(input_ids)`` does; the loss is the mean
cross-entropy over the positions that have a label.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zoexport.core.lora_scaling import LoraScaling

Noise = Callable[[int, int], Callable[[int, Tensor], Tensor]]
"""(step, query) to a function that makes z of one adapter after another: (number of the adapter, B) to z."""


def torch_noise(step: int, query: int) -> Callable[[int, Tensor], Tensor]:
    """Noise as MeZO makes it: a generator that is seeded again for each pass over the adapters."""
    generator = torch.Generator().manual_seed((step << 20) + query)

    def normal(_: int, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator)

    return normal


@dataclasses.dataclass
class Timed:
    """Losses of a step (+ and - of each query, or the one) and where its seconds went."""

    losses: list[float]
    seconds: float
    parts: dict[str, float]


class EagerZerothOrder:
    """Steps on one model with adapters; ``close`` takes the adapters off again.

    Args:
        model: a causal language model in eval mode, fp32.
        slots: ``lora_A.<module>`` (in, rank) and ``lora_B.<module>`` (rank, out), fp32, in the order of the noise.
        scaling: what each adapter's output is multiplied by.
        num_queries, eps, learning_rate: of a step.
        noise: where z comes from.
    """

    def __init__(
        self,
        model: nn.Module,
        slots: Mapping[str, Tensor],
        *,
        scaling: LoraScaling,
        num_queries: int,
        eps: float,
        learning_rate: float,
        noise: Noise = torch_noise,
    ) -> None:
        self.model = model
        self.num_queries, self.eps, self.learning_rate = num_queries, eps, learning_rate
        self.noise = noise
        self.b: list[Tensor] = []
        self.step_number = 0
        self._handles = []
        for name in slots:
            if name.startswith("lora_B."):
                module = name.removeprefix("lora_B.")
                b = slots[name].clone()
                hook = adapter(slots[f"lora_A.{module}"], b, scaling.scale_of(module))
                self._handles.append(model.get_submodule(module).register_forward_hook(hook))
                self.b.append(b)

    def step(self, tokens: Tensor, labels: Tensor) -> Timed:
        """Run one step.

        Args:
            tokens: int64 (batch, max_length). labels: same, -100 = ignored; equal count per row.
        """
        clock = Clock()
        losses, gradients = [], []
        with torch.no_grad():
            for query in range(self.num_queries):
                self._add(self.step_number, query, self.eps)
                clock.lap("perturb")
                losses.append(self._loss(tokens, labels))
                clock.lap("forward")
                self._add(self.step_number, query, -2 * self.eps)
                clock.lap("perturb")
                losses.append(self._loss(tokens, labels))
                clock.lap("forward")
                self._add(self.step_number, query, self.eps)
                clock.lap("perturb")
                gradients.append((losses[-2] - losses[-1]) / (2 * self.eps))
            for query, gradient in enumerate(gradients):
                self._add(
                    self.step_number, query, -self.learning_rate * gradient / self.num_queries
                )
            clock.lap("update")
        self.step_number += 1
        return Timed(losses, sum(clock.parts.values()), clock.parts)

    def close(self) -> None:
        """Restore the model."""
        for handle in self._handles:
            handle.remove()

    def _add(self, step: int, query: int, scale: float) -> None:
        normal = self.noise(step, query)
        for number, b in enumerate(self.b):
            b.add_(normal(number, b), alpha=scale)

    def _loss(self, tokens: Tensor, labels: Tensor) -> float:
        logits = self.model(input_ids=tokens, use_cache=False).logits
        return float(nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))


def adapter(a: Tensor, b: Tensor, scaling: float) -> Callable[..., Tensor]:
    """Return a forward hook that adds scaling * x A B to a layer's output."""

    def add(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return output + scaling * (inputs[0] @ a @ b)

    return add


class Clock:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """Count the time since the last lap, or the start, as ``part``."""
        now = time.perf_counter()
        self.parts[part] = self.parts.get(part, 0.0) + now - self._last
        self._last = now
