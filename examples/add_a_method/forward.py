"""Zeroth-order training of LoRA in two groups by forward differences: a method that is one file and a reference."""

from __future__ import annotations

import dataclasses

from zoexport.core.config import setting
from zoexport.core.settings import LoraSettings
from zoexport.core.target import Method, Pass
from zoexport.methods import methods


@dataclasses.dataclass(frozen=True)
class ForwardConfig(LoraSettings):
    """Settings of the method; its command-line flags and checks come from them."""

    directions: int = setting(2, at_least=1, help="of each group, beside a probe without a move")
    eps: float = setting(1e-2, above=0, phase="run", help="perturbation scale")


def passes(config: ForwardConfig, targets: list[str]) -> list[Pass]:
    """Return the rewrites of the captured graph, in order."""
    from zoexport.methods.split import split_passes
    from zoexport.methods.steps import blocks

    counts = config.directions, config.directions
    step = blocks("last:1", lambda layers: layers - 1, counts, "forward")
    return [*split_passes(config, targets), step]


NAME = "forward"
summary = "forward differences, over the last layer and over those before it"
reference = "forward_reference:ForwardReference"
methods.register(NAME, Method(NAME, summary, ForwardConfig, passes, reference))
