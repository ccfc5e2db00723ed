"""SPZO in plain PyTorch, written from the paper (FedSPZO 3.2.2, equations 6 to 8.

See docs/methods.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zoexport.core.encoders import model_inputs
from zoexport.core.sizes import sizes
from zoexport.methods.reference.adapted import LORA_B
from zoexport.methods.reference.zeroth_order import AdaptersOrWeightsReference
from zoexport.methods.spzo import SpzoConfig


class SpzoReference(AdaptersOrWeightsReference):
    """Zeroth-order SGD in two blocks: f2(f1(x; w1); w2), with one forward pass per loss."""

    config: SpzoConfig

    def __init__(self, model: nn.Module, config: SpzoConfig, slots: Mapping[str, Tensor]) -> None:
        super().__init__(model, config, slots)
        self.late = _read_by_second_block(model, config)
        if self.weights is not None:
            # Parameters that both blocks read are perturbed only in the second.
            keys = self.weights.slots
            self.second = {name for key, name in keys.items() if _module(key) in self.late}
        else:
            self.second = {name for name in self.masters if name.removeprefix(LORA_B) in self.late}

    def differences(self, batch: Sequence[Any]) -> tuple[list[float], list[float]]:
        """Return the losses of a step and its projected gradients.

        Returns:
            4 P1 P2 losses, plus and minus for every direction of the second block; and the
            gradients: P1 of the first block, then 2 P1 P2 of the second.
        """
        eps = self.config.eps
        first, second = self.config.directions
        means: list[float] = []
        losses: list[float] = []
        for i in range(first):
            for side, sign in enumerate((1.0, -1.0)):
                h = self.moved(early=sign, along=i)
                found = []
                for j in range(second):
                    z2 = (2 * i + side) * second + j
                    found += [
                        self.loss(batch, h | self.moved(late=s, along=z2)) for s in (1.0, -1.0)
                    ]
                means.append(sum(found) / len(found))
                losses += found
        gradients = [
            *((plus - minus) / (2 * eps) for plus, minus in _pairs(means)),
            *((plus - minus) / (2 * eps) for plus, minus in _pairs(losses)),
        ]
        return losses, gradients

    def moved(self, *, early: float = 0.0, late: float = 0.0, along: int) -> dict[str, Tensor]:
        """Return the masters of one block, perturbed along its direction: w + sign * eps * z."""
        return {
            name: value
            + (late or early) * self.config.eps * self.noise(name, along, self.step_number)
            for name, value in self.masters.items()
            if (name in self.second) == (late != 0.0)
        }

    def updated(self, name: str, gradients: Sequence[float], learning_rate: float) -> Tensor:
        """Return a master after a step: each block uses the mean of g z over its own directions."""
        first = self.config.directions[0]
        own = gradients[first:] if name in self.second else gradients[:first]
        return super().updated(name, own, learning_rate)

    def replacements(
        self, slots: Mapping[str, str], values: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the parameters by module; the first block reads shared parameters unperturbed."""
        return {
            key: values[name]
            if _module(key) in self.late or name not in self.second
            else self.masters[name]
            for key, name in slots.items()
        }


def _module(key: str) -> str:
    return key.rpartition(".")[0]


def _pairs(values: Sequence[float]) -> list[tuple[float, float]]:
    return [*zip(values[::2], values[1::2], strict=True)]


def _read_by_second_block(model: Any, config: SpzoConfig) -> set[str]:
    """Return the modules that are called after the first block."""
    count = sizes(model.config).num_layers
    layers = next(
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    )
    called: list[str] = []

    def note(name: str) -> Any:
        return lambda *_: called.append(name)

    handles = [
        module.register_forward_pre_hook(note(name)) for name, module in model.named_modules()
    ]
    last = layers[config.first_layers(count) - 1]
    handles.append(last.register_forward_hook(lambda *_: called.clear()))
    try:
        with torch.no_grad():
            model(**model_inputs(model, torch.zeros(1, 2, dtype=torch.long)))
    finally:
        for handle in handles:
            handle.remove()
    return set(called)
