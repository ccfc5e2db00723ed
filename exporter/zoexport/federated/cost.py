"""Operations of a client's step, for reports."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any

from zoexport.core.children import python
from zoexport.federated.terms import Terms

_SECONDS = 1800  # a busy machine counts a large model for minutes


def flops_per_step(
    manifest: Mapping[str, Any], terms: Terms, labels: int | None = None
) -> int | None:
    """Return FLOPs per step, counted by ``zoexport plan``; None if the model cannot be found.

    It runs in another process, as counting needs torch and the memory of a graph.

    Args:
        manifest: manifest of the bundle.
        labels: number of predicted tokens in a batch; None: all.
        terms: supply ``difference`` if the method has this setting.
    """
    settings = dict(manifest["settings"])
    if "difference" in settings:
        settings["difference"] = terms.difference
    given = [f"{key}={value}" for key, value in settings.items() if value is not None]
    command, environment = python(
        "zoexport",
        "plan",
        manifest["model"]["source"],
        "--method",
        manifest["method"],
        "--target",
        manifest["target"],
        "--json",
        *([] if labels is None else ["--labels", str(labels)]),
        *(part for one in given for part in ("--set", one)),
    )
    try:
        found = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, timeout=_SECONDS
        )
        return int(json.loads(found.stdout)["flops_per_step"])
    except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired):
        return None
