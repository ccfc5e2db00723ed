"""Zeroth-order SGD in plain PyTorch: one query and one sign after another, on the Hugging Face model itself.

What references of zeroth-order methods have in common. They share no code with the passes, the session or the kernels,
except the noise, which is a specification of its own (``core.rng``).
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zoexport.core import rng
from zoexport.core.settings import LoraSettings
from zoexport.methods.adapted import LORA_B, AdaptedModel, Added, lora


class ZerothOrderReference(abc.ABC):
    """SPSA with q queries over some master tensors, and the update of a step at the start of the next.

    A subclass says what the masters do in the model (:meth:`added`), and of the equations below the ones in which its
    method differs.

    Args:
        model: the Hugging Face model with the weights to be trained over, already quantized and dequantized where the
            bundle is quantized. Its forward hooks are used, nothing else changes.
        config: of the bundle.
        masters: by slot, in the order of their tensor ids, which count from 0.
    """

    def __init__(self, model: nn.Module, config: Any, masters: Mapping[str, Tensor]) -> None:
        self.adapted = AdaptedModel(model)
        self.config = config
        self.masters = {name: value.clone() for name, value in masters.items()}
        self.initial = self.values() if config.loss == "dpo" else {}
        self.step_number = 0
        self.pending: tuple[list[float], float] | None = None

    @abc.abstractmethod
    def added(self, values: Mapping[str, Tensor]) -> Added:
        """What is added to the model's layers under these values of the masters, float32."""

    def step(self, batch: Sequence[Any], learning_rate: float) -> dict[str, Any]:
        """One step on a batch of examples (objects with ``candidates`` and ``target``).

        Returns:
            ``losses`` and projected ``gradients`` (:meth:`differences`), and every master ``before`` and ``after`` the
            update that was pending from the step before.
        """
        before = self.values()
        self.finish()
        after = self.values()
        losses, gradients = self.differences(batch)
        self.pending = (gradients, learning_rate)
        self.step_number += 1
        return {"losses": losses, "gradients": gradients, "before": before, "after": after}

    def differences(self, batch: Sequence[Any]) -> tuple[list[float], list[float]]:
        """The 2q losses of a step (+1, -1, +2, ...), and g_j = (l(w + eps z_j) - l(w - eps z_j)) / (2 eps)."""
        losses = [
            self.loss(batch, self.perturbed(query, sign))
            for query in range(self.config.queries)
            for sign in (1.0, -1.0)
        ]
        gradients = [
            (losses[2 * query] - losses[2 * query + 1]) / (2 * self.config.eps)
            for query in range(self.config.queries)
        ]
        return losses, gradients

    def perturbed(self, query: int, sign: float) -> dict[str, Tensor]:
        """Every master moved along one direction: w + sign * eps * z."""
        return {
            name: value + sign * self.config.eps * self.noise(name, query, self.step_number)
            for name, value in self.masters.items()
        }

    def follow(
        self, masters: Mapping[str, Tensor], gradients: Sequence[float], learning_rate: float
    ) -> None:
        """Go on from another run's state: its masters and the gradients that it has pending."""
        for name in self.masters:
            self.masters[name] = masters[name].clone()
        self.pending = (list(gradients), learning_rate) if gradients else None

    def values(self) -> dict[str, Tensor]:
        """A copy of every master."""
        return {name: value.clone() for name, value in self.masters.items()}

    def finished(self) -> dict[str, Tensor]:
        """Every master, nothing pending."""
        self.finish()
        return self.values()

    def finish(self) -> None:
        """Apply the pending update."""
        if self.pending is None:
            return
        for name in self.masters:
            self.masters[name] = self.updated(name, *self.pending)
        self.pending = None

    def updated(self, name: str, gradients: Sequence[float], learning_rate: float) -> Tensor:
        """A master after a step of these gradients: w - lr/q * sum over queries of g_j z_j."""
        value = self.masters[name]
        total = torch.zeros_like(value)
        for query, gradient in enumerate(gradients):
            total += gradient * self.noise(name, query, self.step_number - 1)
        return value - learning_rate / len(gradients) * total

    def noise(self, name: str, query: int, step: int) -> Tensor:
        """z of one master, query and step."""
        value = self.masters[name]
        number = list(self.masters).index(name)
        values = rng.normals(self.config.seed, number, query, step, value.numel())
        return torch.from_numpy(values).view_as(value)

    def loss(self, batch: Sequence[Any], values: Mapping[str, Tensor]) -> float:
        """The mean loss of a batch under these values of the masters."""
        with torch.no_grad():
            reference = self.reference(batch)
            added = self.added(values)
            losses = [
                float(self.adapted.loss(example, self.config, added, known))
                for example, known in zip(batch, reference, strict=True)
            ]
        return sum(losses) / len(batch)

    def reference(self, batch: Sequence[Any]) -> list[list[Tensor]]:
        """Scores of each example under the initial values, where the loss needs them."""
        if self.config.loss != "dpo":
            return [[] for _ in batch]
        masters, self.masters = self.masters, self.initial
        try:
            added = self.added(self.masters)
            return [self.adapted.scores(example, added) for example in batch]
        finally:
            self.masters = masters


class LoraFaReference(ZerothOrderReference):
    """Zeroth-order SGD on the B matrices of LoRA-FA adapters.

    Args:
        model, config: see :class:`ZerothOrderReference`.
        slots: initial ``lora_A.<module>`` (in, rank) and ``lora_B.<module>`` (rank, out), fp32, in the order of
            the B's tensor ids.
    """

    def __init__(self, model: nn.Module, config: LoraSettings, slots: Mapping[str, Tensor]) -> None:
        masters = {name: value for name, value in slots.items() if name.startswith(LORA_B)}
        super().__init__(model, config, masters)
        self.frozen = {name: value.clone() for name, value in slots.items() if name not in masters}

    def added(self, values: Mapping[str, Tensor]) -> Added:
        """The adapter of every layer, A frozen."""
        return lora({**self.frozen, **values}, self.config)
