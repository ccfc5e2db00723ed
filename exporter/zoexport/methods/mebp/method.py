"""MeBP: its passes and its reference."""

from __future__ import annotations

from zoexport.core.types import Method, Pass
from zoexport.methods import methods
from zoexport.methods.mebp.config import MebpConfig


def passes(config: MebpConfig, targets: list[str]) -> list[Pass]:
    """One layer's forward and backward program at a time; ``targets`` are the modules to adapt."""
    from zoexport.methods.split import split_passes

    return split_passes(config, targets)


methods.register(
    "mebp",
    Method(
        name="mebp",
        summary="backpropagation through LoRA, layer by layer over mapped weights (MeBP)",
        config=MebpConfig,
        passes=passes,
        reference_class="zoexport.methods.reference.mebp:FirstOrderReference",
    ),
)
