"""What a client's step computes, for reports."""

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
    """Floating-point operations of a step, as ``zoexport plan`` counts them; None where the model cannot be found.

    It runs in another process, as counting takes torch and the memory of a graph.

    Args:
        manifest: the bundle's.
        labels: tokens of a batch that are predicted; None: all.
        terms: what a step evaluates is theirs where the method leaves it open.
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
