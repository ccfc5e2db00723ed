"""What a comparison of methods compares."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Arm:
    """A method with settings of ``compile --set``, and the learning rates that it is tried with."""

    label: str
    method: str
    settings: Mapping[str, str]
    rates: tuple[float, ...]


def estimators(bits: str, rates: tuple[float, ...], *, eps: str) -> tuple[Arm, ...]:
    """Both of QuZO's, on integers of so many bits."""
    common = {"weight_bits": bits, "eps": eps}
    return tuple(
        Arm(f"{estimator.upper()}, INT{bits}", "quzo", {**common, "estimator": estimator}, rates)
        for estimator in ("q-rge2", "q-rge1")
    )
