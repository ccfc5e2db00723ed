"""Convert adapters with a scale per layer to formats with one scale for all layers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from zoexport.adapters.files import Array
from zoexport.adapters.formats import Slots
from zoexport.core.errors import ConfigError


def one_scale(numbers: Mapping[str, float], kind: str, what: str) -> tuple[float, dict[str, float]]:
    """Return one number for all layers, and the compensating factor of each layer's B.

    The factor is a power of two, at least 1, so that float32 values stay exact.

    Args:
        numbers: exact number of each module. kind: name of the format. what: name of the number.

    Raises:
        ConfigError: the layers' numbers differ by more than powers of two.
    """
    least = min(numbers.values())
    factors = {module: number / least for module, number in numbers.items()}
    for module, factor in factors.items():
        if math.frexp(factor)[0] != 0.5:
            other = next(m for m, number in numbers.items() if number == least)
            raise ConfigError(
                f"adapter format {kind!r}",
                found=f"{what} {least:g} of {other} and {numbers[module]:g} of {module}",
                expected="one for all layers, or powers of two of it, as the file has one number",
                fix="Use --format peft or merged.",
            )
    return least, factors


def scaled(slots: Slots, factors: Mapping[str, float]) -> dict[str, Array]:
    """Return the float32 tensors with the B of each module multiplied by its factor."""
    found = {name: np.asarray(values, np.float32) for name, values in slots.items()}
    for module, factor in factors.items():
        if factor != 1:
            found[f"lora_B.{module}"] = found[f"lora_B.{module}"] * np.float32(factor)
    return found


def inverse(factors: Mapping[str, float]) -> dict[str, float]:
    """Return the inverse factors."""
    return {module: 1 / factor for module, factor in factors.items()}
