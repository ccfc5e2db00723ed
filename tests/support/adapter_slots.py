"""Values of adapters for tests of their file formats."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from tests.support.tiny_models import fixed

RANK, ALPHA = 4, 6.0


def slots_of(model: Any, modules: Iterable[str], rank: int = RANK) -> dict[str, torch.Tensor]:
    """Return A of shape (inputs, rank) and B of shape (rank, outputs) for linear layers of a model."""
    slots = {}
    for module in modules:
        layer = model.get_submodule(module)
        a, b = f"lora_A.{module}", f"lora_B.{module}"
        slots[a] = fixed(a, (layer.in_features, rank)) / math.sqrt(layer.in_features)
        slots[b] = fixed(b, (rank, layer.out_features)) / 2
    return slots
