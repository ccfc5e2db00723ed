"""What several targets decide, or refuse in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoexport.core.types import Problem

_LABELS_A_ROW = 8


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


def few_labels(config: Any) -> int:
    """``labels`` where the user does not say, for programs whose number of labels is fixed.

    Prompts with completions of a few tokens fit, and the logits of all copies stay some tens of MB. Rows with more
    labels take more calls.
    """
    return int(min(config.batch * config.seq_len, config.batch * _LABELS_A_ROW))
