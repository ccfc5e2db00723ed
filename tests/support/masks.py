"""Masks of tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from zoexport import models
from zoexport.core.mask import Mask, MaskFacts, write_mask


def random_places(model: Any, density: float) -> dict[str, torch.Tensor]:
    """Places in every linear weight but the first, none in that; more in some than in others."""
    generator = torch.Generator().manual_seed(0)
    chosen = {}
    for number, module in enumerate(models.linear_names(model)):
        count = model.get_submodule(module).weight.numel()
        chosen_here = round(density * count * (number % 3 + 1) / 2) if number else 0
        places = torch.randperm(count, generator=generator)[:chosen_here]
        chosen[f"{module}.weight"] = places.sort()[0]
    return chosen


def write_random_mask(folder: Path, path: Path, density: float = 0.01) -> Path:
    """A mask file for the model in a folder."""
    loaded = models.load(models.resolve(str(folder)))
    places = random_places(loaded.model, density)
    shapes = {name: list(loaded.model.get_parameter(name).shape) for name in places}
    facts = MaskFacts(
        kind="random",
        model=loaded.name,
        model_sha256=loaded.sha256,
        corpus="",
        corpus_sha256="",
        sequences=0,
        max_length=0,
        density=density,
        scope="layer",
        seed=0,
        shapes=shapes,
    )
    write_mask(path, Mask(facts, places))
    return path
