"""Conditions of a measurement apart from the code: machine, versions, load."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Set
from importlib.metadata import version
from pathlib import Path
from typing import Any

from zoexport.core.cores import usable_cores
from zoexport.core.version import __version__

WORKLOAD = (
    "full rows of tokens over the whole vocabulary; labels=all: every token after the first is predicted, "
    "labels=last: the last alone; each round of a bundle is a fresh process of zoexport-runner"
)
BASELINE = (
    "eager: the Hugging Face model in PyTorch, fp32, scaled-dot-product attention, no_grad; for each query two forward "
    "passes with LoRA-FA adapters perturbed in place by noise that is made again at each use (MeZO), logits of all "
    "positions, cross-entropy over the same labels of the same tokens"
)

AUTOGRAD = (
    "autograd: the Hugging Face model in PyTorch, fp32, scaled-dot-product attention; LoRA on both matrices, forward "
    "and backward pass, logits of all positions, cross-entropy over the same labels of the same tokens, clipping, AdamW"
)
MEMORY = "anonymous memory: the most RssAnon of the process that steps, looked at every 10 ms"


def baselines(methods: Set[str]) -> list[str]:
    """Return descriptions of the baselines among ``methods``."""
    return [text for name, text in (("eager", BASELINE), ("autograd", AUTOGRAD)) if name in methods]


def machine() -> dict[str, Any]:
    """Processor, cores, system and versions."""
    return {
        "cpu": _cpu(),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {
            "zoexport": __version__,
            **{name: version(name) for name in ("torch", "executorch", "transformers")},
        },
    }


def load_average() -> float | None:
    """Processes that ran or waited over the last minute; more than our own threads means a busy machine."""
    with contextlib.suppress(OSError):
        return round(os.getloadavg()[0], 2)
    return None


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in (
            Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        ):
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
