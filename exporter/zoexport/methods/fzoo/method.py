"""FZOO: its passes and its reference."""

from __future__ import annotations

from zoexport.core.types import Method, Pass
from zoexport.methods import methods
from zoexport.methods.fzoo.config import FzooConfig


def passes(config: FzooConfig, targets: list[str]) -> list[Pass]:
    """LoRA's B with A frozen, all q + 1 copies together; ``targets`` are the modules to adapt."""
    from zoexport.methods.split import split_passes
    from zoexport.methods.whole import whole_passes
    from zoexport.passes.dual_forward import one_sided_forward
    from zoexport.steps.one_sided import one_sided

    if config.staged:
        return [*split_passes(config, targets), one_sided(config.queries, "stage", config.update)]
    return [*whole_passes(config, targets, one_sided_forward), one_sided(config.queries, "call")]


methods.register(
    "fzoo",
    Method(
        name="fzoo",
        summary="zeroth-order LoRA-FA from one-sided differences, each step divided by the losses' deviation (FZOO)",
        config=FzooConfig,
        passes=passes,
        reference_class="zoexport.methods.reference.fzoo:FzooReference",
    ),
)
