"""QuZO: its passes and its reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zoexport.core.types import Pass
from zoexport.methods import methods
from zoexport.methods.quzo.config import QuzoConfig

if TYPE_CHECKING:
    import torch

    from zoexport.methods.quzo.reference import QuzoReference


@dataclasses.dataclass(frozen=True)
class QuzoMethod:
    """Zeroth-order training of integers; all 2q perturbed copies go through a layer together."""

    name: str = "quzo"
    summary: str = (
        "zeroth-order training of int8 and int4 weights themselves, which stay integers (QuZO)"
    )
    config: type = QuzoConfig

    def passes(self, config: QuzoConfig, targets: list[str]) -> list[Pass]:
        """The rewrites, in order. ``targets`` are the modules whose weights are trained."""
        from zoexport.methods.split import split_passes
        from zoexport.steps.spsa import spsa

        order = split_passes(config, targets, copies=2 * config.queries)
        return [*order, spsa(config.queries, "call")]

    def reference(
        self, model: torch.nn.Module, config: QuzoConfig, slots: Mapping[str, torch.Tensor]
    ) -> QuzoReference:
        """The method in plain PyTorch."""
        from zoexport.methods.quzo.reference import QuzoReference

        return QuzoReference(model, config, slots)


methods.register("quzo", QuzoMethod())
