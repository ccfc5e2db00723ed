"""Settings of P-RGE and MeZO."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from zoexport.core.config import setting
from zoexport.core.types import Problem
from zoexport.methods.adapters_or_weights import AdaptersOrWeights
from zoexport.methods.whole import WholeOrLayers


@dataclasses.dataclass(frozen=True)
class PrgeConfig(WholeOrLayers):
    """What ``--set`` and recipes take for ``prge`` and ``mezo``, with the defaults."""

    together: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class MezoConfig(AdaptersOrWeights, PrgeConfig):
    """Those of ``mezo``, which can train the weights, and leave one side of its differences out."""

    together: ClassVar[bool] = False
    rates: ClassVar[dict[str, float]] = {"lora": 2e-3, "full": 2e-5}

    difference: str = setting(
        "central",
        choices=("central", "forward"),
        phase="run",
        help="projected gradients from +z and -z, or from +z and one unperturbed loss",
    )
    split: str = setting(
        "",
        choices=("whole", "layers"),
        help="one program, or one for each distinct layer over mapped weights (lora: whole; full: layers)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        split = "layers" if self.train == "full" else "whole"
        object.__setattr__(self, "split", self.split or split)

    def problems(self) -> list[Problem]:
        """Weights that programs of the whole model hold, too."""
        found = super().problems()
        if self.train == "full" and not self.staged:
            where = "settings train=full, split=whole"
            reason = (
                "weights that are trained are inputs, which only programs of single layers have"
            )
            fix = "Leave split out, or train adapters (train=lora)."
            found.append(Problem(where, reason, fix))
        return found
