"""Validation of method, target and settings before a model is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoexport.core.config import as_dict, parse, with_values
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
    """Validated method, target and settings of a compilation."""

    method: Method
    target: Target
    config: TrainingSettings


def fallback_plan(planned: Plan) -> Plan | None:
    """Return the plan of the programs for devices that cannot run the target's engine; None if the target names none.

    They compute in float32, so that losses differ from those of ``planned`` by its rounding alone.
    """
    if not planned.target.fallback:
        return None
    target = targets.get(planned.target.fallback)
    chosen = dict.fromkeys(("soc", "granularity", "labels", "activation_cache_mb"))
    own = chosen | {"activations": "fp32", "compute": "fp32"}
    known = as_dict(planned.config)
    config = with_values(planned.config, {key: own[key] for key in own if key in known})
    return Plan(planned.method, target, target.defaults(config))


def default_method(target: str) -> str:
    """Return the method to use if the user names none: P-RGE on an NPU, else the first of :data:`_PREFERRED`."""
    known = methods.names()
    preferred = next(name for name in _PREFERRED if name in known)
    return _DEFAULT_METHODS.get(target, preferred)


def plan(method: str | None, target: str, settings: Mapping[str, Any]) -> Plan:
    """Look up method and target and check the settings.

    Raises:
        ConfigError: a name or setting is unknown, a value is invalid, or the target cannot run the combination.
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
    """Call :func:`plan` with the defaults of a recipe and of an adapter.

    ``settings`` override the adapter's rank, alpha and layers, which override the recipe.

    Args:
        method, target, settings, recipe: see ``build.compile_bundle``.
        adapter: folder of a PEFT adapter.

    Raises:
        ConfigError: see :func:`plan`; also if ``settings`` contradict the adapter or the method trains no adapter.
        StateError: the folder contains no PEFT adapter.
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
