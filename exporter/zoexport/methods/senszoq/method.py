"""SensZOQ: its passes and its reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zoexport.core.types import Pass
from zoexport.methods import methods
from zoexport.methods.senszoq.config import SenszoqConfig

if TYPE_CHECKING:
    import torch

    from zoexport.methods.senszoq.reference import SenszoqReference


@dataclasses.dataclass(frozen=True)
class SenszoqMethod:
    """Zeroth-order training of chosen weights; all 2q perturbed copies go through a layer together."""

    name: str = "senszoq"
    summary: str = "zeroth-order training of the 0.1 % most sensitive weights, in fp16 over quantized ones (SensZOQ)"
    config: type = SenszoqConfig

    def passes(self, config: SenszoqConfig, targets: list[str]) -> list[Pass]:
        """The rewrites, in order. ``targets`` are the modules whose weights are chosen from."""
        from zoexport.methods.split import split_passes
        from zoexport.passes.update_program import update_program
        from zoexport.steps.spsa import spsa

        return [
            *split_passes(config, targets, copies=2 * config.queries),
            Pass(
                "update_program",
                lambda graph: update_program(graph, config.queries),
                "has no sizes to choose and belongs to no stage",
            ),
            spsa(config.queries, "call"),
        ]

    def reference(
        self, model: torch.nn.Module, config: SenszoqConfig, slots: Mapping[str, torch.Tensor]
    ) -> SenszoqReference:
        """The method in plain PyTorch."""
        from zoexport.methods.senszoq.reference import SenszoqReference

        return SenszoqReference(model, config, slots)


methods.register("senszoq", SenszoqMethod())
