"""SPZO: split-perturbation zeroth-order training, the client of FedSPZO."""

from __future__ import annotations

import dataclasses
import re
from typing import ClassVar

from zoexport.core.config import setting
from zoexport.core.errors import Problem
from zoexport.core.target import Method, Pass
from zoexport.methods import methods
from zoexport.methods.adapters_or_weights import AdaptersOrWeights
from zoexport.methods.steps import blocks

_SPLIT = re.compile(r"head|(layer|last):([1-9]\d*)")
_PERTURBATIONS = re.compile(r"([1-9]\d{0,2}),([1-9]\d{0,2})")


@dataclasses.dataclass(frozen=True)
class SpzoConfig(AdaptersOrWeights):
    """Settings of ``spzo`` for ``--set`` and recipes."""

    split: str = setting(
        "",
        help="second block: head, layer:K (all after K layers) or last:K (default with full: head, with lora: last:1)",
    )
    perturbations: str = setting(
        "1,4",
        help="P1,P2: directions of the first block, and directions of the second per perturbation of the first",
    )

    rates: ClassVar[dict[str, float]] = {"lora": 1e-3, "full": 1e-5}

    def __post_init__(self) -> None:
        super().__post_init__()
        split = "head" if self.train == "full" else "last:1"
        object.__setattr__(self, "split", self.split or split)

    @property
    def directions(self) -> tuple[int, int]:
        """Numbers of directions P1 and P2."""
        first, second = self.perturbations.split(",")
        return int(first), int(second)

    def first_layers(self, layers: int) -> int:
        """Return how many of ``layers`` decoder layers the first block has.

        Out of range if there are too few.
        """
        found = _SPLIT.fullmatch(self.split)
        assert found is not None
        kind, count = found[1], int(found[2] or 0)
        return {"layer": count, "last": layers - count}.get(kind, layers)

    def problems(self) -> list[Problem]:
        """Also report malformed values."""
        found = super().problems()
        if not _SPLIT.fullmatch(self.split):
            found.append(
                Problem(
                    f"setting split={self.split}",
                    "that names no place in a model",
                    "Choose head, layer:K or last:K, with K at least 1.",
                )
            )
        if not _PERTURBATIONS.fullmatch(self.perturbations):
            found.append(
                Problem(
                    f"setting perturbations={self.perturbations}",
                    "that is not two numbers from 1 to 999",
                    "Give P1,P2, such as perturbations=1,4.",
                )
            )
        return found


def passes(config: SpzoConfig, targets: list[str]) -> list[Pass]:
    """Return the passes for two blocks, the second with more directions.

    ``targets``: target modules.
    """
    from zoexport.methods.split import split_passes

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
