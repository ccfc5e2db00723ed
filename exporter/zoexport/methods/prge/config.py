"""Settings of P-RGE and MeZO."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from zoexport.core.config import setting
from zoexport.methods.whole import WholeOrLayers


@dataclasses.dataclass(frozen=True)
class PrgeConfig(WholeOrLayers):
    """What ``--set`` and recipes take for ``prge`` and ``mezo``, with the defaults."""

    together: ClassVar[bool] = True


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
