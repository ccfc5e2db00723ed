"""P-RGE: zeroth-order LoRA-FA inside an inference engine, and its sequential baseline MeZO."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from zoexport.core.config import setting
from zoexport.core.errors import Problem
from zoexport.core.target import Method, Pass
from zoexport.methods import methods
from zoexport.methods.adapters_or_weights import AdaptersOrWeights
from zoexport.methods.steps import spsa
from zoexport.methods.whole import WholeOrLayers

if TYPE_CHECKING:
    from zoexport.core.step_plan import Copies

_SOONER = (
    "Of zeroth-order methods over adapters, fzoo with lora.init_weights=activations reached the loss of prge in 0.37 of"
    " its operations (docs/results/learning.md)."
)


@dataclasses.dataclass(frozen=True)
class PrgeConfig(WholeOrLayers):
    """Settings of ``prge`` for ``--set`` and recipes."""

    together: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class MezoConfig(AdaptersOrWeights, PrgeConfig):
    """Settings of ``mezo``, which can also train the weights and use forward differences."""

    together: ClassVar[bool] = False
    rates: ClassVar[dict[str, float]] = {"lora": 2e-3, "full": 2e-5}

    difference: str = setting(
        "central",
        choices=("central", "forward"),
        phase="run",
        help="central differences (+z and -z), or forward differences (+z and one unperturbed loss)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train == "full" and self.granularity is None:
            object.__setattr__(self, "granularity", "layer")

    def problems(self) -> list[Problem]:
        """Also report full training with model granularity, whose programs contain the weights."""
        found = super().problems()
        if self.train == "full" and not self.staged:
            where = "settings train=full, granularity=model"
            reason = (
                "weights that are trained are inputs, which only programs of single layers have"
            )
            fix = "Leave granularity out, or train adapters (train=lora)."
            found.append(Problem(where, reason, fix))
        return found


def passes(config: PrgeConfig, targets: list[str]) -> list[Pass]:
    """Return the passes that train LoRA's B with A frozen (LoRA-FA).

    ``targets``: target modules.
    """
    from zoexport.methods.split import split_passes
    from zoexport.methods.whole import whole_passes
    from zoexport.passes.dual_forward import dual_forward, sequential_forward

    difference = config.difference if isinstance(config, MezoConfig) else "central"
    staged = config.staged
    copy_adapters = dual_forward if config.together else sequential_forward
    order = (
        split_passes(config, targets) if staged else whole_passes(config, targets, copy_adapters)
    )
    copies: Copies = "one"
    if config.together:
        copies = "stage" if staged else "call"
    return [*order, spsa(config.num_queries, copies, difference, config.update)]


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
        summary="zeroth-order LoRA-FA; one perturbed copy per forward pass (MeZO, the baseline)",
        config=MezoConfig,
        passes=passes,
        reference_class="zoexport.methods.reference.prge:MezoReference",
        sooner=_SOONER,
    ),
)
