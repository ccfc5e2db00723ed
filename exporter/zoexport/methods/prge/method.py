"""P-RGE and MeZO: the order of their passes, with the reason for each place.

Passes and reference are imported where they are used: training looks a method's settings up without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoexport.core.types import Method, Pass
from zoexport.methods import methods
from zoexport.methods.prge.config import MezoConfig, PrgeConfig

if TYPE_CHECKING:
    from zoexport.core.step_plan import Copies


_SOONER = (
    "Of zeroth-order methods over adapters, fzoo with lora.init=activations reached the loss of prge in 0.37 of its"
    " operations (docs/learning.md)."
)


def passes(config: PrgeConfig, targets: list[str]) -> list[Pass]:
    """Zeroth-order training of LoRA's B with A frozen (LoRA-FA); ``targets`` are the modules to adapt."""
    from zoexport.methods.split import split_passes
    from zoexport.methods.whole import whole_passes
    from zoexport.passes.dual_forward import dual_forward, sequential_forward
    from zoexport.steps.spsa import spsa

    difference = config.difference if isinstance(config, MezoConfig) else "central"
    staged = config.staged
    copy_adapters = dual_forward if config.together else sequential_forward
    order = (
        split_passes(config, targets) if staged else whole_passes(config, targets, copy_adapters)
    )
    copies: Copies = "one"
    if config.together:
        copies = "stage" if staged else "call"
    return [*order, spsa(config.queries, copies, difference, config.update)]


methods.register(
    "prge",
    Method(
        name="prge",
        summary="zeroth-order LoRA-FA; all 2q perturbed copies in one forward pass (P-RGE)",
        config=PrgeConfig,
        passes=passes,
        reference_class="zoexport.methods.reference.prge:PrgeReference",
        sooner=_SOONER,
    ),
)
methods.register(
    "mezo",
    Method(
        name="mezo",
        summary="zeroth-order LoRA-FA; one perturbed copy a forward pass (MeZO, the baseline)",
        config=MezoConfig,
        passes=passes,
        reference_class="zoexport.methods.reference.prge:MezoReference",
        sooner=_SOONER,
    ),
)
