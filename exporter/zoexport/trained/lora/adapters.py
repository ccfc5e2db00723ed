"""A bundle's adapters: what is true of all of them, and their sum with the weights that they are beside."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from zoexport.adapters import AdapterSettings, Slots, read_settings, slot_modules
from zoexport.trained.kind import Bundle

if TYPE_CHECKING:
    import torch


def settings_of(bundle: Bundle) -> AdapterSettings:
    """The settings of a bundle's adapters.

    Raises:
        StateError: its ``adapter_config.json`` is missing or is no LoRA description.
    """
    model = bundle.manifest["model"]
    heads = model.get("attention_heads")
    return dataclasses.replace(
        read_settings(bundle.folder),
        architecture=str(model["architecture"]),
        heads=None if heads is None else (heads["queries"], heads["keys"]),
        llama_cpp=model.get("llama_cpp"),
    )


def add_to_weights(model: torch.nn.Module, slots: Slots, settings: AdapterSettings) -> None:
    """W + (A B)^T times its scale for the weight W (outputs, inputs) of every adapted layer."""
    import numpy as np
    import torch

    for module in slot_modules(slots):
        a, b = (np.asarray(slots[f"lora_{half}.{module}"], np.float32) for half in "AB")
        added = torch.from_numpy(np.ascontiguousarray((a @ b).T))
        layer: Any = model.get_submodule(module)
        layer.weight.data.add_(added, alpha=settings.scaling.scale_of(module))
