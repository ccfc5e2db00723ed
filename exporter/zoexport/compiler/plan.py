"""What is to be compiled: method, target and settings, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoexport.core.config import parse
from zoexport.core.errors import ConfigError, Problem
from zoexport.core.recipes import StrPath, read_recipe
from zoexport.core.settings import TrainingSettings
from zoexport.core.target import Method, Target, unmet
from zoexport.methods import methods
from zoexport.targets import targets
from zoexport.trained import kind_of, needs_of

_ADAPTER_FORMAT = "peft"
_DEFAULT_METHODS = {"android-npu": "prge"}
_PREFERRED = ("mebp", "prge")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to be compiled, decided before any heavy work."""

    method: Method
    target: Target
    config: TrainingSettings


def default_method(target: str) -> str:
    """The method where the user names none: P-RGE on an NPU, elsewhere the first preferred one there is."""
    known = methods.names()
    preferred = next(name for name in _PREFERRED if name in known)
    return _DEFAULT_METHODS.get(target, preferred)


def plan(method: str | None, target: str, settings: Mapping[str, Any]) -> Plan:
    """Look up method and target and check the settings.

    Raises:
        ConfigError: an unknown name or setting, an impossible value, a combination the target cannot run.
    """
    chosen_target = targets.get(target)
    chosen_method = methods.get(method or default_method(target))
    config = chosen_target.defaults(parse(chosen_method.config, settings))
    others = [targets.get(name) for name in targets.names()]
    _raise_problems(
        [
            *config.problems(),
            *chosen_target.check_available(),
            *unmet(config, needs_of(config), chosen_target, others),
            *chosen_target.supports(config),
        ]
    )
    return Plan(chosen_method, chosen_target, config)


def with_recipe(
    method: str | None,
    target: str,
    settings: Mapping[str, Any],
    recipe: StrPath | None,
    adapter: Path | None = None,
) -> Plan:
    """:func:`plan` with a recipe's method, and its settings where none of ``settings`` says otherwise.

    Args:
        method, target, settings, recipe: see :func:`compile_bundle`.
        adapter: PEFT's, whose rank, alpha and layers go before the recipe's.

    Raises:
        ConfigError: as :func:`plan`; or ``settings`` contradict the adapter, or the method cannot start from one.
        StateError: the adapter is none of PEFT's.
    """
    read = read_recipe(recipe)
    method, given = read.chosen(method), {**read.settings, **settings}
    if adapter is None:
        return plan(method, target, given)
    from zoexport.adapters.start import check_start, start_settings

    chosen = methods.get(method or default_method(target))
    kind = kind_of(parse(chosen.config, given))
    if _ADAPTER_FORMAT not in kind.readable:
        raise ConfigError(
            f"adapter {adapter}",
            found=f"method {chosen.name} with these settings, which trains {kind.words}",
            expected="a method that trains adapters of numbers, such as mebp or prge",
            fix="Leave --adapter out, or choose another method.",
        )
    own = start_settings(adapter)
    check_start(adapter, own, settings, chosen.config)
    planned = plan(method, target, {**given, **own})
    if planned.config.measures_directions:
        raise ConfigError(
            "setting lora.init_weights=activations",
            found=f"an adapter to start from, {adapter}, which has both matrices",
            expected="one of them",
            fix="Leave lora.init_weights or --adapter out.",
        )
    return planned


def _raise_problems(problems: list[Problem]) -> None:
    if problems:
        raise ConfigError(
            " and ".join(problem.where for problem in problems),
            found="; ".join(problem.reason for problem in problems),
            expected="a combination that the target can run",
            fix=" ".join(problem.fix for problem in problems),
        )
