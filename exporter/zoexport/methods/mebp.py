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

    max_length: int = setting(256, at_least=2, help="tokens a row; longer examples are shortened")
    batch_size: int = setting(
        1, at_least=1, phase="run", help="examples a step, and rows in one call"
    )
    optimizer: str = setting("adamw", choices=("adamw", "sgd"), help="the update rule")
    momentum: float = setting(
        0.0, at_least=0, below=1, phase="run", help="momentum of sgd; adamw has its own"
    )
    weight_decay: float = setting(0.0, at_least=0, phase="run", help="decay of the adapters")
    max_grad_norm: float = setting(
        1.0, at_least=0, phase="run", help="largest norm of all gradients together; 0 is off"
    )
    checkpoint_every: int = setting(
        1, at_least=1, phase="process", help="layers between two activations that are kept"
    )
    activation_cache_mb: int | None = setting(
        None,
        at_least=0,
        phase="process",
        help="MB of a mapped file for results that the backward pass need not compute again",
    )
    learning_rate: float = setting(1e-3, above=0, phase="run", help="learning rate")
    lr_scheduler_type: str = setting(
        "linear",
        choices=("constant", "linear", "cosine"),
        phase="run",
        help="how the rate changes over the steps",
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
