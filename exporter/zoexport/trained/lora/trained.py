"""LoRA adapters beside frozen weights: both matrices, or the second alone (LoRA-FA)."""

from __future__ import annotations

from pathlib import Path

from zoexport.adapters import FORMATS, adapter_format, read_settings
from zoexport.core.settings import LoraSettings
from zoexport.core.types import Pass
from zoexport.trained import kinds
from zoexport.trained.kind import Bundle, Insertion, Slots, Trained


def insertion(config: LoraSettings, targets: list[str]) -> Insertion:
    """Adapters beside the linear layers ``targets``; first-order methods train the first matrix too."""
    from zoexport.passes.lora_inject import lora_inject

    inject = Pass(
        "lora_inject",
        lambda graph: lora_inject(
            graph,
            targets,
            rank=config.lora_rank,
            alpha=config.lora_alpha,
            seed=config.seed,
            train_a=config.first_order,
        ),
        "adapters are found by weight name, so before weights are quantized and before stages rename them",
    )
    return Insertion(captured=(inject,))


def write(
    kind: str, slots: Slots, initial: Slots, bundle: Bundle, output: Path, replace: bool
) -> None:
    """A folder for PEFT or mlx-lm."""
    adapter_format(kind).write(slots, read_settings(bundle.folder), output, replace=replace)


def read(kind: str, folder: Path, own: Slots, bundle: Bundle) -> Slots:
    """The adapter in such a folder."""
    shapes = {name: values.shape for name, values in own.items()}
    return adapter_format(kind).read(folder, shapes, read_settings(bundle.folder))


kinds.register(
    "lora",
    Trained(
        words="an adapter",
        formats=tuple(FORMATS),
        readable=tuple(FORMATS),
        insertion=insertion,
        write=write,
        read=read,
    ),
)
