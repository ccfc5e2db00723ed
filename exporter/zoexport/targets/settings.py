"""What several targets decide, or refuse in the same words."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from zoexport.core.config import as_dict, with_values
from zoexport.core.settings import TrainingSettings
from zoexport.core.types import Problem

_LABELS_A_ROW = 8


def filled(config: TrainingSettings, preferred: Mapping[str, Any]) -> TrainingSettings:
    """``config`` with what a target prefers where the user said nothing; keys that a method lacks are left out."""
    settings = as_dict(config)
    known = {"activation_cache_mb": 0, **preferred}
    return with_values(
        config, {key: value for key, value in known.items() if settings.get(key, "") is None}
    )


def needs_package(target: str, package: str) -> list[Problem]:
    """A Problem where ``package`` is missing, which the extra of the target's name installs."""
    if importlib.util.find_spec(package) is not None:
        return []
    return [
        Problem(
            f"target {target}",
            f"the package {package} is not installed",
            f"pip install 'zoexport[{target}]'.",
        )
    ]


def needs_executorch(target: str) -> list[Problem]:
    """Return a Problem if ExecuTorch is not installed."""
    if importlib.util.find_spec("executorch") is not None:
        return []
    reason = "the package executorch is not installed"
    return [Problem(f"target {target}", reason, "Install zoexport again.")]


def few_labels(config: TrainingSettings) -> int:
    """``labels`` where the user does not say, for programs whose number of labels is fixed.

    Prompts with completions of a few tokens fit, and the logits of all copies stay some tens of MB. Rows with more
    labels take more calls.
    """
    return int(min(config.batch_size * config.max_length, config.batch_size * _LABELS_A_ROW))
