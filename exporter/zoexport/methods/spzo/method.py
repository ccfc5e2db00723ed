"""SPZO: its passes and its reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zoexport.core.types import Pass
from zoexport.methods import methods
from zoexport.methods.spzo.config import SpzoConfig

if TYPE_CHECKING:
    import torch

    from zoexport.methods.spzo.reference import SpzoReference


@dataclasses.dataclass(frozen=True)
class SpzoMethod:
    """Zeroth-order training of a model in two blocks, the second with more directions over what the first gives."""

    name: str = "spzo"
    summary: str = "zeroth-order training in two blocks, with more directions for the cheap second one (FedSPZO)"
    config: type = SpzoConfig

    def passes(self, config: SpzoConfig, targets: list[str]) -> list[Pass]:
        """The rewrites, in order. ``targets`` are the modules to adapt."""
        from zoexport.methods.split import split_passes
        from zoexport.steps.blocks import blocks

        step = blocks(config.split, config.first_layers, config.directions)
        return [*split_passes(config, targets), step]

    def reference(
        self, model: torch.nn.Module, config: SpzoConfig, slots: Mapping[str, torch.Tensor]
    ) -> SpzoReference:
        """The method in plain PyTorch."""
        from zoexport.methods.spzo.reference import SpzoReference

        return SpzoReference(model, config, slots)


methods.register("spzo", SpzoMethod())
