"""LoRA adapters beside frozen weights: both matrices, or the second alone (LoRA-FA)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zoexport.adapters import FORMATS, adapter_format
from zoexport.core.settings import LoraSettings
from zoexport.core.types import Pass
from zoexport.trained import kinds
from zoexport.trained.kind import MERGED, Bundle, Insertion, Output, Slots, Trained
from zoexport.trained.lora.adapters import add_to_weights, settings_of

if TYPE_CHECKING:
    import torch


def insertion(config: LoraSettings, targets: list[str]) -> Insertion:
    """Adapters beside the linear layers ``targets``; first-order methods train the first matrix too."""
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
    """A folder for PEFT or mlx-lm, or a file for llama.cpp."""
    kind = adapter_format(output.kind, output.outtype)
    kind.write(slots, settings_of(bundle), output.path, replace=output.replace)


def merge(model: torch.nn.Module, slots: Slots, bundle: Bundle) -> None:
    """What the adapters add, in the weights that they are beside."""
    add_to_weights(model, slots, settings_of(bundle))


def read(kind: str, path: Path, own: Slots, bundle: Bundle) -> Slots:
    """The adapter in such a folder or file."""
    shapes = {name: values.shape for name, values in own.items()}
    return adapter_format(kind).read(path, shapes, settings_of(bundle))


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
