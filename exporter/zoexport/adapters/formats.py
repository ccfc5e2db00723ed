"""Interface of adapter formats."""

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
    """Settings of a whole adapter.

    Attributes:
        rank: LoRA rank; it and alpha apply to modules that no pattern names (``LoraScaling``).
        base_model: a hub id or folder.
        target_modules: names or paths that match exactly the adapted layers of the base model.
        fan_in_fan_out: whether the base model stores these weights transposed (GPT-2).
        causal: whether the base model is a causal language model.
        architecture: transformers' class of the base model.
        heads: numbers of attention heads, of queries and of keys; None if unknown.
        llama_cpp: llama.cpp's names of the layers, from the bundle's manifest.
        rslora, rank_pattern, alpha_pattern: see ``LoraScaling``.
        dropout: dropout probability during training.
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
        """Ranks and scales of the layers."""
        return LoraScaling(
            self.rank, self.alpha, self.rslora, self.rank_pattern, self.alpha_pattern
        )


class AdapterFormat(Protocol):
    """A file format of adapters, with functions to write and to read it."""

    name: str
    summary: str

    def write(
        self, slots: Slots, settings: AdapterSettings, path: Path, *, replace: bool = False
    ) -> None:
        """Write the adapter atomically to a new path; the same tensors give the same bytes.

        Raises:
            ConfigError: the format cannot represent a layer or its scale, a value is not finite,
                the path exists and ``replace`` is off, or the place cannot be written.
        """

    def read(
        self, path: Path, shapes: Mapping[str, tuple[int, ...]], settings: AdapterSettings
    ) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """Read an adapter, which must fit the bundle.

        Args:
            path: the adapter.
            shapes: shapes of all state tensors of the bundle.
            settings: settings of the bundle; ranks and scales must match.

        Returns:
            All state tensors, float32.

        Raises:
            ConfigError: the format has no name for a layer that the bundle adapts.
            StateError: the files are damaged, or the adapter does not fit the bundle.
        """


def slot_modules(names: Iterable[str]) -> list[str]:
    """Return the adapted modules of state tensor names, in order."""
    return [name.removeprefix("lora_B.") for name in names if name.startswith("lora_B.")]


def adapted_modules(slots: Sequence[Slot]) -> list[str]:
    """Return the paths of a training graph's layers with float or integer adapters."""
    # The module of a quantized adapter's tensor is lora_A or lora_B itself.
    return [
        slot.module.removesuffix(".lora_B")
        for slot in slots
        if slot.name.startswith("lora_B.") or slot.module.endswith(".lora_B")
    ]
