"""Zeroth-order SGD in plain PyTorch on the Hugging Face model, one query and sign at a time.

Base of the references of zeroth-order methods. They share no code with the passes, the session or
the kernels, except the noise, which has its own specification (``core.rng``).
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from zoexport.core import rng
from zoexport.core.settings import LoraSettings
from zoexport.methods.reference.adapted import LORA_B, AdaptedModel, Added, lora


class ZerothOrderReference(abc.ABC):
    """SPSA with q queries over master tensors.

    The update of a step is applied at the start of the next.

    A subclass defines how the model uses the masters (:meth:`added`) and overrides the equations in
    which its method differs.

    Args:
        model: Hugging Face model with the weights to train, already quantized and dequantized if
            the bundle is quantized. Only its forward hooks are changed.
        config: settings of the bundle.
        masters: master tensors by parameter, in the order of their tensor ids, which count from 0.
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
        """Return the additions to the model's layers for these values of the masters, float32."""

    def step(self, batch: Sequence[Any], learning_rate: float) -> dict[str, Any]:
        """Run one step on a batch of examples (objects with ``candidates`` and ``target``).

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
        """Return the 2q losses of a step (+1, -1, +2, ...) and the projected gradients.

        g_j = (l(w + eps z_j) - l(w - eps z_j)) / (2 eps).
        """
        losses = [
            self.loss(batch, self.perturbed(query, sign))
            for query in range(self.config.num_queries)
            for sign in (1.0, -1.0)
        ]
        gradients = [
            (losses[2 * query] - losses[2 * query + 1]) / (2 * self.config.eps)
            for query in range(self.config.num_queries)
        ]
        return losses, gradients

    def first_losses(self, batch: Sequence[Any], count: int) -> list[float]:
        """Return the first ``count`` losses of :meth:`differences` without computing the others."""
        found: list[float] = []
        loss = self.loss

        def counted(batch: Sequence[Any], values: Mapping[str, Tensor]) -> float:
            found.append(loss(batch, values))
            if len(found) == count:
                raise _EnoughError
            return found[-1]

        vars(self)["loss"] = counted
        try:
            with contextlib.suppress(_EnoughError):
                self.differences(batch)
        finally:
            del vars(self)["loss"]
        return found

    def perturbed(self, query: int, sign: float) -> dict[str, Tensor]:
        """Return every master perturbed along one direction: w + sign * eps * z."""
        return {
            name: value + sign * self.config.eps * self.noise(name, query, self.step_number)
            for name, value in self.masters.items()
        }

    def follow(
        self, masters: Mapping[str, Tensor], gradients: Sequence[float], learning_rate: float
    ) -> None:
        """Continue from another run's state: its masters and pending gradients."""
        for name in self.masters:
            self.masters[name] = masters[name].clone()
        self.pending = (list(gradients), learning_rate) if gradients else None

    def values(self) -> dict[str, Tensor]:
        """Return a copy of every master."""
        return {name: value.clone() for name, value in self.masters.items()}

    def finished(self) -> dict[str, Tensor]:
        """Apply the pending update and return a copy of every master."""
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
        """Return a master after a step: w - learning_rate/q * sum over queries of g_j z_j."""
        value = self.masters[name]
        total = torch.zeros_like(value)
        for query, gradient in enumerate(gradients):
            total += gradient * self.noise(name, query, self.step_number - 1)
        return value - learning_rate / len(gradients) * total

    def noise(self, name: str, query: int, step: int) -> Tensor:
        """Return z of one master, query and step."""
        value = self.masters[name]
        number = list(self.masters).index(name)
        values = rng.normals(self.config.seed, number, query, step, value.numel())
        return torch.from_numpy(values).view_as(value)

    def loss(self, batch: Sequence[Any], values: Mapping[str, Tensor]) -> float:
        """Return the mean loss of a batch for these values of the masters."""
        with torch.no_grad():
            reference = self.reference(batch)
            added = self.added(values)
            losses = [
                float(self.adapted.loss(example, self.config, added, known))
                for example, known in zip(batch, reference, strict=True)
            ]
        return sum(losses) / len(batch)

    def reference(self, batch: Sequence[Any]) -> list[list[Tensor]]:
        """Return the scores of each example for the initial values, if the loss needs them."""
        if self.config.loss != "dpo":
            return [[] for _ in batch]
        masters, self.masters = self.masters, self.initial
        try:
            added = self.added(self.masters)
            return [self.adapted.scores(example, added) for example in batch]
        finally:
            self.masters = masters


class _EnoughError(Exception):
    """Ends :meth:`ZerothOrderReference.differences` early."""


class AdaptersOrWeightsReference(ZerothOrderReference):
    """Zeroth-order SGD on the B matrices of LoRA-FA adapters, or on all weights of the model.

    Args:
        model, config: see :class:`ZerothOrderReference`.
        slots: fp32 parameters in the order of their tensor ids: initial ``lora_A.<module>`` (in,
            rank) and ``lora_B.<module>`` (rank, out), only the latter trained; or the model's
            parameters by name.
    """

    def __init__(self, model: nn.Module, config: LoraSettings, slots: Mapping[str, Tensor]) -> None:
        full = config.trained == "weights"
        masters = {name: v for name, v in slots.items() if full or name.startswith(LORA_B)}
        super().__init__(model, config, masters)
        self.frozen = {name: value.clone() for name, value in slots.items() if name not in masters}
        self.weights: _ReplacedWeights | None = None
        if full:
            self.weights = _ReplacedWeights(model, masters)
            self.adapted = AdaptedModel(model, self.weights)

    def added(self, values: Mapping[str, Tensor]) -> Added:
        """Return the adapter of every layer, with A frozen.

        Empty if the weights themselves are trained.
        """
        if self.weights is None:
            return lora({**self.frozen, **values}, self.config)
        self.weights.values = self.replacements(self.weights.slots, values)
        return {}

    def replacements(
        self, slots: Mapping[str, str], values: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the values by the keys of ``slots``, the parameter names of each module."""
        return {key: values[name] for key, name in slots.items()}


class _ReplacedWeights(nn.Module):
    """Model called with replaced parameters; shared parameters may differ between modules.

    Attributes:
        slots: maps the name of a parameter in each of its modules to its name in the argument
            ``slots``.
        values: parameters for the next call, by the same names.
    """

    def __init__(self, model: nn.Module, slots: Iterable[str]) -> None:
        super().__init__()
        self.model = model
        own = {id(model.get_parameter(name)): name for name in slots}
        owners = model.named_parameters(remove_duplicate=False)
        self.slots = {key: own[id(value)] for key, value in owners if id(value) in own}
        self.values: dict[str, Tensor] = {}

    def forward(self, **inputs: Any) -> Any:
        return functional_call(self.model, self.values, (), inputs, tie_weights=False)
