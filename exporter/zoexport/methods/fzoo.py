"""FZOO: one-sided zeroth-order LoRA-FA along random signs, with steps over the deviation of the losses."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from zoexport.core.config import setting
from zoexport.core.target import Method, Pass
from zoexport.methods import methods
from zoexport.methods.steps import one_sided
from zoexport.methods.whole import WholeOrLayers


@dataclasses.dataclass(frozen=True)
class FzooConfig(WholeOrLayers):
    """Settings of ``fzoo`` for ``--set`` and recipes; docs/methods.md explains the defaults."""

    together: ClassVar[bool] = True

    num_queries: int = setting(
        7, at_least=2, help="random directions per step (q), in addition to one unperturbed copy"
    )
    eps: float = setting(
        None,
        above=0,
        phase="run",
        help="perturbation scale (1e-3; with activations=int8 or granularity=model: 1e-2)",
    )
    learning_rate: float = setting(
        5e-3,
        above=0,
        phase="run",
        help="learning rate; the gradient is normalized",
    )

    def __post_init__(self) -> None:
        # int8 activations are too coarse for the smaller eps. The target sets what is still None.
        if self.eps is None and self.granularity and self.activations:
            exact = self.staged and self.activations == "fp32"
            object.__setattr__(self, "eps", 1e-3 if exact else 1e-2)


def passes(config: FzooConfig, targets: list[str]) -> list[Pass]:
    """Return the passes that train LoRA's B with all q + 1 copies in one call.

    ``targets``: target modules.
    """
    from zoexport.methods.split import split_passes
    from zoexport.methods.whole import whole_passes
    from zoexport.passes.dual_forward import one_sided_forward

    if config.staged:
        return [
            *split_passes(config, targets),
            one_sided(config.num_queries, "stage", config.update),
        ]
    return [
        *whole_passes(config, targets, one_sided_forward),
        one_sided(config.num_queries, "call"),
    ]


methods.register(
    "fzoo",
    Method(
        name="fzoo",
        summary="zeroth-order LoRA-FA from one-sided differences, divided by the losses' standard deviation (FZOO)",
        config=FzooConfig,
        passes=passes,
        reference_class="zoexport.methods.reference.fzoo:FzooReference",
    ),
)
