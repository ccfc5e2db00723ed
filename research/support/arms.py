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
    common = {"weights": f"int{bits}", "eps": eps}
    return tuple(
        Arm(f"{estimator.upper()}, INT{bits}", "quzo", {**common, "estimator": estimator}, rates)
        for estimator in ("q-rge2", "q-rge1")
    )


ALL_WEIGHTS = {"train": "full", "eps": "1e-3"}
"""Of a zeroth-order method that trains every parameter."""


def unsplit(queries: int, rates: tuple[float, ...]) -> Arm:
    """MeZO over all weights."""
    return Arm(
        f"unsplit, P = {queries}", "mezo", {**ALL_WEIGHTS, "num_queries": str(queries)}, rates
    )


def split(perturbations: str, rates: tuple[float, ...]) -> Arm:
    """FedSPZO's estimator over all weights, the output head as second block (section 4.1)."""
    settings = {**ALL_WEIGHTS, "split": "head", "perturbations": perturbations}
    return Arm(f"split, P = {perturbations}", "spzo", settings, rates)
