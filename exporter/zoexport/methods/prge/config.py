"""Settings of P-RGE and MeZO."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from zoexport.core.config import setting
from zoexport.core.settings import LoraSettings


@dataclasses.dataclass(frozen=True)
class PrgeConfig(LoraSettings):
    """What ``--set`` and recipes take for ``prge`` and ``mezo``, with the defaults."""

    together: ClassVar[bool] = True

    queries: int = setting(4, at_least=1, help="random directions a step (q)")
    eps: float = setting(1e-2, above=0, runtime=True, help="perturbation scale")
    labels: int | None = setting(
        None,
        at_least=1,
        help="label tokens in one call; a batch with more takes several (all; android-npu, ios-*: 8 a row)",
    )
    split: str = setting(
        "whole",
        choices=("whole", "layers"),
        help="one program, or one for each distinct layer over mapped weights",
    )

    @property
    def staged(self) -> bool:
        """As the setting says."""
        return self.split == "layers"


@dataclasses.dataclass(frozen=True)
class MezoConfig(PrgeConfig):
    """Those of ``mezo``, which can leave one side of its differences out."""

    together: ClassVar[bool] = False

    difference: str = setting(
        "central",
        choices=("central", "forward"),
        runtime=True,
        help="projected gradients from +z and -z, or from +z and one unperturbed loss",
    )
