"""A prepared folder: all that runs need of a model, its tokenizer and texts, so that they need no more than PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from research.accelerator.arms import Comparison
from research.accelerator.tasks import Part
from research.support.arms import Arm
from zoexport.core.config import fields, parse
from zoexport.methods import methods

MODEL = "model"
FACTS = "facts.json"
VALIDATED = {"films": 200, "text": 32}
"""Examples of each task that choose rates: the last ones of the training file."""
TESTED = {"films": 500, "text": 34}
"""Examples of each task that results are of: the first ones of the test file."""


def write_parts(folder: Path, task: str, parts: Mapping[str, Part]) -> None:
    """Examples of a task."""
    tensors = {
        f"{name}.{field}": getattr(part, field).int().contiguous()
        for name, part in parts.items()
        for field in ("tokens", "lengths", "right")
    }
    save_file(tensors, folder / f"{task}.safetensors")


def read_parts(folder: Path, task: str) -> dict[str, Part]:
    """What :func:`write_parts` wrote."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in load_file(folder / f"{task}.safetensors").items():
        name, _, field = key.rpartition(".")
        found.setdefault(name, {})[field] = value.long()
    return {name: Part(**fields) for name, fields in found.items()}


def directions_file(folder: Path, targets: str, rank: int) -> Path:
    """The file of first matrices along directions of activations."""
    return folder / f"directions-{targets}-{rank}.safetensors"


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """``choices``, the tokens of the films' choices, and what the page says of the model and its operations."""
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def read_facts(folder: Path) -> dict[str, Any]:
    """What :func:`write_facts` wrote."""
    found: dict[str, Any] = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    return found


def config_of(arm: Arm, comparison: Comparison) -> Any:
    """An arm's, of its method."""
    config = methods.get(arm.method).config
    known = fields(config)
    common = {key: value for key, value in comparison.common.items() if key in known}
    return parse(config, {**common, **arm.settings})


def key_of(arm: Arm, comparison: Comparison) -> str:
    """A name of a method with all settings, the same for the same arm of two comparisons."""
    settings = {**comparison.common, **arm.settings}
    text = ",".join(f"{key}={value}" for key, value in sorted(settings.items()))
    return f"{arm.method},{text}"
