"""LoRA adapters of frozen weights: both matrices, or B alone (LoRA-FA)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.adapters import FORMATS, AdapterSettings, adapter_format, read_settings, slot_modules
from zoexport.core.settings import LoraSettings
from zoexport.core.target import Pass
from zoexport.session import Bundle
from zoexport.trained import MERGED, Insertion, Output, Slots, Trained, kinds

if TYPE_CHECKING:
    import torch


def insertion(config: LoraSettings, targets: list[str]) -> Insertion:
    """Add adapters to the linear layers ``targets``; first-order methods also train A."""
    from zoexport.passes.drop_inputs import drop_inputs
    from zoexport.passes.lora_inject import lora_inject

    inject = Pass(
        "lora_inject",
        lambda graph: lora_inject(
            graph,
            targets,
            config.scaling,
            seed=config.seed,
            train_a=config.first_order,
        ),
        "adapters are found by weight name, so before weights are quantized and before stages rename them",
    )
    drop = Pass("drop_inputs", drop_inputs, "once for a family, which training alone passes")
    return Insertion(captured=(inject,), training=(drop,) if config.lora_dropout else ())


def write(output: Output, slots: Slots, initial: Slots, bundle: Bundle) -> None:
    """Write a folder for PEFT or mlx-lm, or a file for llama.cpp."""
    kind = adapter_format(output.kind, output.outtype)
    kind.write(slots, settings_of(bundle), output.path, replace=output.replace)


def merge(model: torch.nn.Module, slots: Slots, bundle: Bundle) -> None:
    """Merge the adapters into the adapted weights."""
    add_to_weights(model, slots, settings_of(bundle))


def read(kind: str, path: Path, own: Slots, bundle: Bundle) -> Slots:
    """Read the adapter of a folder or file."""
    shapes = {name: values.shape for name, values in own.items()}
    return adapter_format(kind).read(path, shapes, settings_of(bundle))


def settings_of(bundle: Bundle) -> AdapterSettings:
    """Return the settings of a bundle's adapters.

    Raises:
        StateError: its ``adapter_config.json`` is missing or is not a LoRA description.
    """
    model = bundle.manifest["model"]
    heads = model.get("attention_heads")
    return dataclasses.replace(
        read_settings(bundle.path),
        architecture=str(model["architecture"]),
        heads=None if heads is None else (heads["queries"], heads["keys"]),
        llama_cpp=model.get("llama_cpp"),
    )


def add_to_weights(model: torch.nn.Module, slots: Slots, settings: AdapterSettings) -> None:
    """Add scale * (A B)^T to the weight (outputs, inputs) of every adapted layer."""
    import numpy as np
    import torch

    for module in slot_modules(slots):
        a, b = (np.asarray(slots[f"lora_{half}.{module}"], np.float32) for half in "AB")
        added = torch.from_numpy(np.ascontiguousarray((a @ b).T))
        layer: Any = model.get_submodule(module)
        layer.weight.data.add_(added, alpha=settings.scaling.scale_of(module))


kinds.register(
    "lora",
    Trained(
        words="an adapter",
        formats=(*FORMATS, MERGED),
        readable=tuple(FORMATS),
        insertion=insertion,
        write=write,
        merge=merge,
        read=read,
    ),
)
