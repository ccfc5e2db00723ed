"""What every adapter format is given and gives back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from zoexport.core.graph import Slot
from zoexport.core.lora_scaling import LoraScaling

Slots = Mapping[str, Any]
"""``lora_A.<module>`` (in, rank) and ``lora_B.<module>`` (rank, out), numpy arrays or CPU tensors."""


@dataclasses.dataclass(frozen=True)
class AdapterSettings:
    """What is true of a whole adapter.

    Attributes:
        rank: inner size, and alpha, of which the scale is made: of modules that no pattern names (``LoraScaling``).
        base_model: a hub id or folder.
        target_modules: names or paths that match the adapted layers of the base model and no other.
        fan_in_fan_out: whether the base model keeps these layers' weights transposed (GPT-2).
        causal: whether the base model is a causal language model.
        architecture: transformers' class of the base model.
        heads: of its attention, those of queries and those of keys; None where nobody says.
        llama_cpp: what llama.cpp calls the layers, as the bundle's manifest has it.
        rslora, rank_pattern, alpha_pattern: as of ``LoraScaling``.
        dropout: share of the inputs that were left out while it was trained.
    """

    rank: int
    alpha: float
    base_model: str
    target_modules: tuple[str, ...]
    fan_in_fan_out: bool = False
    causal: bool = True
    architecture: str = ""
    heads: tuple[int, int] | None = None
    llama_cpp: Mapping[str, Any] | None = None
    rslora: bool = False
    rank_pattern: Mapping[str, int] = dataclasses.field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = dataclasses.field(default_factory=dict)
    dropout: float = 0.0

    @property
    def scaling(self) -> LoraScaling:
        """Ranks and scales of its layers."""
        return LoraScaling(
            self.rank, self.alpha, self.rslora, self.rank_pattern, self.alpha_pattern
        )


class AdapterFormat(Protocol):
    """One way to write an adapter into a folder or a file, and to read it."""

    name: str
    summary: str

    def write(
        self, slots: Slots, settings: AdapterSettings, path: Path, *, replace: bool = False
    ) -> None:
        """Write the adapter to a new path, whole or not at all; the same slots give the same bytes.

        Raises:
            ConfigError: the format has no name for an adapted layer or cannot say its scale, a number is not finite,
                the path exists and ``replace`` is off, or the place cannot be written.
        """

    def read(
        self, path: Path, shapes: Mapping[str, tuple[int, ...]], settings: AdapterSettings
    ) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """Read an adapter that must fit.

        Args:
            path: the adapter.
            shapes: of every slot of the bundle.
            settings: the bundle's; ranks and scales must agree.

        Returns:
            Every slot, float32.

        Raises:
            ConfigError: the format has no name for a layer that the bundle adapts.
            StateError: the files are damaged, or the adapter does not fit the bundle.
        """


def slot_modules(names: Iterable[str]) -> list[str]:
    """The adapted modules of slot names, in their order."""
    return [name.removeprefix("lora_B.") for name in names if name.startswith("lora_B.")]


def adapted_modules(slots: Sequence[Slot]) -> list[str]:
    """The paths of a training graph's adapted layers, whose adapters are numbers or integers."""
    # The module of a quantized adapter's slot is one half of the adapter.
    return [
        slot.module.removesuffix(".lora_B")
        for slot in slots
        if slot.name.startswith("lora_B.") or slot.module.endswith(".lora_B")
    ]
