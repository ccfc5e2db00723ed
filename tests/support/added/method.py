"""Zeroth-order training of LoRA in two groups by forward differences: a method that is one file and a reference."""

from __future__ import annotations

import dataclasses
from typing import Any

from zoexport.core.config import setting
from zoexport.core.settings import LoraSettings
from zoexport.core.types import Pass
from zoexport.methods import methods


@dataclasses.dataclass(frozen=True)
class ForwardConfig(LoraSettings):
    directions: int = setting(2, at_least=1, help="of each group, beside a probe without a move")
    eps: float = setting(1e-2, above=0, runtime=True, help="perturbation scale")


@dataclasses.dataclass(frozen=True)
class ForwardMethod:
    name: str = "forward"
    summary: str = "forward differences, over the last layer and over those before it"
    config: type = ForwardConfig

    def passes(self, config: ForwardConfig, targets: list[str]) -> list[Pass]:
        from zoexport.methods.split import split_passes
        from zoexport.steps.blocks import blocks

        counts = config.directions, config.directions
        step = blocks("last:1", lambda layers: layers - 1, counts, "forward")
        return [*split_passes(config, targets), step]

    def reference(self, model: Any, config: ForwardConfig, slots: Any) -> Any:
        from tests.support.added.reference import ForwardReference

        return ForwardReference(model, config, slots)


methods.register("forward", ForwardMethod())
