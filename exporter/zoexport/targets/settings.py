"""What several targets decide, or refuse in the same words."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from zoexport.core.config import as_dict, with_values
from zoexport.core.types import Problem

_LABELS_A_ROW = 8


def filled(config: Any, preferred: Mapping[str, Any]) -> Any:
    """``config`` with what a target prefers where the user said nothing; keys that a method lacks are left out."""
    settings = as_dict(config)
    return with_values(
        config, {key: value for key, value in preferred.items() if settings.get(key, "") is None}
    )


def needs_package(target: str, package: str) -> list[Problem]:
    """Of a target that an extra of its name installs ``package`` for."""
    if importlib.util.find_spec(package) is not None:
        return []
    return [
        Problem(
            f"target {target}",
            f"the package {package} is not installed",
            f"pip install 'zoexport[{target}]'.",
        )
    ]


def needs_executorch(target: str, delegate: str = "") -> list[Problem]:
    """Of a target that lowers through ExecuTorch, and there through the module ``delegate``."""
    for module in ("executorch", *([delegate] if delegate else [])):
        if importlib.util.find_spec(module) is None:
            return [
                Problem(
                    f"target {target}",
                    f"the package {module} is not installed",
                    "Run 'make setup', or pip install executorch==1.5.1 after torch.",
                )
            ]
    return []


def refuse_engine(target: str, engine: str, settings: Mapping[str, Any]) -> list[Problem]:
    """Of a target that one engine runs."""
    if settings["engine"] in (None, engine):
        return []
    return [
        Problem(
            f"setting engine={settings['engine']}",
            f"the engine of target {target} is {engine}",
            "Leave engine out, or compile for ios-coreml.",
        )
    ]


def refuse_chip(target: str, settings: Mapping[str, Any]) -> list[Problem]:
    """Of a target whose programs run on any chip."""
    if settings["soc"] is None:
        return []
    return [
        Problem(
            f"setting soc={settings['soc']}",
            f"target {target} compiles for every chip",
            "Leave soc out, or compile for android-npu.",
        )
    ]


def refuse_activations(target: str, settings: Mapping[str, Any], *known: str) -> list[Problem]:
    """Of a target that computes with ``known`` activations."""
    if settings["activations"] in known:
        return []
    return [
        Problem(
            f"setting activations={settings['activations']}",
            f"target {target} computes with {' or '.join(known)} activations",
            f"Choose activations={' or '.join(known)}.",
        )
    ]


def refuse_compute(target: str, settings: Mapping[str, Any]) -> list[Problem]:
    """Of a target that computes in fp32 alone."""
    if settings["compute"] == "fp32":
        return []
    return [
        Problem(
            f"setting compute={settings['compute']}",
            f"target {target} computes in fp32",
            "Leave compute at fp32.",
        )
    ]


def refuse_chosen(target: str, settings: Mapping[str, Any]) -> list[Problem]:
    """Of a target without a product of chosen weights beside the frozen ones."""
    if "mask" not in settings:
        return []
    return [
        Problem(
            "setting mask",
            f"target {target} has no sparse product for single weights that are trained",
            "Compile for host, android-cpu or ios-mlx, or train adapters (prge, mebp).",
        )
    ]


def refuse_integers(target: str, settings: Mapping[str, Any]) -> list[Problem]:
    """Of a target without a product that perturbs integer weights."""
    if "perturbation_bits" not in settings:
        return []
    return [
        Problem(
            "method quzo",
            f"target {target} has no product that perturbs integers",
            "Compile for host or android-cpu, or train adapters (prge, mebp).",
        )
    ]


def refuse_trained_weights(target: str, settings: Mapping[str, Any]) -> list[Problem]:
    """Of a target whose products read constants: weights that are trained are inputs."""
    if "perturbations" not in settings or settings["train"] != "full":
        return []
    return [
        Problem(
            "setting train=full",
            f"target {target} has no products of two inputs, and weights that are trained are inputs",
            "Train adapters (train=lora), or compile for host, android-cpu or ios-mlx.",
        )
    ]


def few_labels(config: Any) -> int:
    """``labels`` where the user does not say, for programs whose number of labels is fixed.

    Prompts with completions of a few tokens fit, and the logits of all copies stay some tens of MB. Rows with more
    labels take more calls.
    """
    return int(min(config.batch * config.seq_len, config.batch * _LABELS_A_ROW))
