"""MeBP: exact backpropagation, layer by layer, in the memory of inference."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from zoexport.core.config import setting
from zoexport.core.features import Feature
from zoexport.core.settings import LoraSettings
from zoexport.core.target import Method, Pass
from zoexport.methods import methods


@dataclasses.dataclass(frozen=True)
class MebpConfig(LoraSettings):
    """Settings of ``mebp`` for ``--set`` and recipes."""

    first_order: ClassVar[bool] = True

    max_length: int = setting(
        256, at_least=2, help="maximum tokens per example; longer examples are truncated"
    )
    batch_size: int = setting(1, at_least=1, phase="run", help="examples per batch")
    optimizer: str = setting("adamw", choices=("adamw", "sgd"), help="optimizer")
    momentum: float = setting(
        0.0, at_least=0, below=1, phase="run", help="momentum of optimizer=sgd"
    )
    weight_decay: float = setting(0.0, at_least=0, phase="run", help="weight decay")
    max_grad_norm: float = setting(
        1.0, at_least=0, phase="run", help="maximum global gradient norm; 0 disables clipping"
    )
    checkpoint_every: int = setting(
        1, at_least=1, phase="process", help="number of layers per activation checkpoint"
    )
    activation_cache_mb: int | None = setting(
        None,
        at_least=0,
        phase="process",
        help="size in MB of a mapped file that saves intermediate results for the backward pass",
    )
    learning_rate: float = setting(1e-3, above=0, phase="run", help="learning rate")
    lr_scheduler_type: str = setting(
        "linear",
        choices=("constant", "linear", "cosine"),
        phase="run",
        help="learning rate schedule",
    )

    @property
    def needs(self) -> dict[Feature, str]:
        """Required features: programs that save activations, if activation_cache_mb is set."""
        keeps = (
            {Feature.SAVED_PRODUCTS: f"setting activation_cache_mb={self.activation_cache_mb}"}
            if self.activation_cache_mb
            else {}
        )
        return {**super().needs, **keeps}


def passes(config: MebpConfig, targets: list[str]) -> list[Pass]:
    """Return the passes for one forward and backward program per layer.

    ``targets``: target modules.
    """
    from zoexport.methods.split import split_passes

    return split_passes(config, targets)


methods.register(
    "mebp",
    Method(
        name="mebp",
        summary="backpropagation through LoRA, layer by layer over mapped weights (MeBP)",
        config=MebpConfig,
        passes=passes,
        reference_class="zoexport.methods.reference.mebp:FirstOrderReference",
    ),
)
