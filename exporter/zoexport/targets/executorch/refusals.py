"""What several of ExecuTorch's targets refuse in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoexport.core.types import Problem


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
