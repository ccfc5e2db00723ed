"""SPZO: its passes and its reference."""

from __future__ import annotations

from zoexport.core.types import Method, Pass
from zoexport.methods import methods
from zoexport.methods.spzo.config import SpzoConfig


def passes(config: SpzoConfig, targets: list[str]) -> list[Pass]:
    """Two blocks, the second with more directions over what the first gives; ``targets`` are the modules to adapt."""
    from zoexport.methods.split import split_passes
    from zoexport.steps.blocks import blocks

    step = blocks(config.split, config.first_layers, config.directions)
    return [*split_passes(config, targets), step]


methods.register(
    "spzo",
    Method(
        name="spzo",
        summary="zeroth-order training in two blocks, with more directions for the cheap second one (FedSPZO)",
        config=SpzoConfig,
        passes=passes,
        reference_class="zoexport.methods.reference.spzo:SpzoReference",
    ),
)
