"""MeBP: its passes and its reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zoexport.core.types import Pass
from zoexport.methods import methods
from zoexport.methods.mebp.config import MebpConfig

if TYPE_CHECKING:
    import torch

    from zoexport.methods.mebp.reference import FirstOrderReference


@dataclasses.dataclass(frozen=True)
class MebpMethod:
    """First-order training of LoRA, one layer's forward and backward program at a time."""

    name: str = "mebp"
    summary: str = "backpropagation through LoRA, layer by layer over mapped weights (MeBP)"
    config: type = MebpConfig

    def passes(self, config: MebpConfig, targets: list[str]) -> list[Pass]:
        """The rewrites, in order. ``targets`` are the modules to adapt."""
        from zoexport.methods.split import split_passes

        return split_passes(config, targets)

    def reference(
        self, model: torch.nn.Module, config: MebpConfig, slots: Mapping[str, torch.Tensor]
    ) -> FirstOrderReference:
        """The method in plain PyTorch."""
        from zoexport.methods.mebp.reference import FirstOrderReference

        return FirstOrderReference(model, config, slots)


methods.register("mebp", MebpMethod())
