"""What methods need and targets have.

A method's settings say what its programs ask of a target (``trained.needs_of``), and a target what it has
(``Target.has``, ``Target.takes``). What is needed and not there is a :class:`~zoexport.core.types.Problem` before
anything is loaded: no target names a method, and nobody writes down where a new method cannot run.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from zoexport.core.config import as_dict
from zoexport.core.types import Problem, Target

if TYPE_CHECKING:
    from zoexport.core.settings import TrainingSettings


class Feature(enum.Enum):
    """What a target must have to run programs of some kind; the value completes "target T has no"."""

    WHOLE = "programs of the whole model"
    STAGES = "programs of single layers"
    SPARSE_PRODUCTS = "sparse product for single weights that are trained"
    INTEGER_PRODUCTS = "product that perturbs integers"
    ROUNDED_PRODUCTS = "product that rounds its inputs to 8 bits while it generates"
    TWO_INPUT_PRODUCTS = "products of two inputs, and weights that are trained are inputs"
    ATTENTION = "operator of attention and of its gradient"
    SAVED_PRODUCTS = "programs that save products' results for the backward pass"
    DROPOUT = "inputs by which adapters leave out some of theirs"
    ENCODERS = "layers that hide padding, as those of masked language models do"


def unmet(
    config: TrainingSettings,
    needs: Mapping[Feature, str],
    target: Target,
    others: Iterable[Target],
) -> list[Problem]:
    """Why a target cannot run the programs of ``config``.

    Args:
        config: a method's settings, the target's defaults filled in.
        needs: of these settings and of what they train (``trained.needs_of``).
        others: targets to advise where this one lacks a feature.
    """
    problems = [_refused(key, value, target) for key, value in _untaken(config, target)]
    for feature, where in missing(needs, target).items():
        having = sorted({other.name for other in others if feature in other.has})
        elsewhere = f"Compile for {', '.join(having)}, or choose" if having else "Choose"
        reason = f"target {target.name} has no {feature.value}"
        problems.append(Problem(where, reason, f"{elsewhere} another method or setting."))
    return problems


def missing(needs: Mapping[Feature, str], target: Target) -> dict[Feature, str]:
    """Those of ``needs`` that ``target`` does not have, and the setting that asks for each."""
    return {feature: where for feature, where in needs.items() if feature not in target.has}


def _untaken(config: TrainingSettings, target: Target) -> list[tuple[str, Any]]:
    settings = as_dict(config)
    return [
        (key, settings[key])
        for key, values in target.takes.items()
        if key in settings and settings[key] is not None and settings[key] not in values
    ]


def _refused(key: str, value: Any, target: Target) -> Problem:
    values = target.takes[key]
    if not values:
        return Problem(
            f"setting {key}={value}",
            f"target {target.name} has no choice of {key}",
            f"Leave {key} out.",
        )
    return Problem(
        f"setting {key}={value}",
        f"target {target.name} takes {key}={' or '.join(values)}",
        f"Leave {key} out, or choose {key}={' or '.join(values)}.",
    )
