"""Parity bounds: one table, a reason beside each row.

A bundle's row is chosen by its activations and arithmetic. Errors are relative: of losses,
|device - reference| / |reference|; of the state and of first-order gradients, the norm of the difference over the norm
of the reference, largest over the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LOSS, STATE, GRADIENT = "loss", "state", "gradient"

_BOUNDS: dict[str, tuple[dict[str, float], str]] = {
    "fp32": (
        {LOSS: 1e-4, STATE: 1e-3, GRADIENT: 1e-4},
        "the device computes in float32, and so does the reference of a zeroth-order method; that of a first-order one "
        "computes in float64, as autograd in float32 was up to 1.5e-4 away from it itself. A projected "
        "gradient divides the difference of two losses by 2 eps, so the state loses the digits that the difference "
        "cancels. AdamW divides a gradient by its own size, so that the smallest ones, whose digits are roundings, "
        "move the state as far as the others: gradients are compared at one state, and updates by one gradient",
    ),
    "int8": (
        {LOSS: 5e-3, STATE: 1e-5, GRADIENT: 5e-3},
        "an activation near a rounding boundary may fall on either side, and takes those after it along: from the "
        "smallest difference in float32 the two sides come to differ by as much as int8 rounding itself moves a "
        "log-probability. That averages out over a few hundred labels of the whole vocabulary, and not in a "
        "difference of two choices' scores; a projected gradient divides it by 2 eps, so that two free runs drift "
        "apart like two draws of noise. So the loss is compared over many labels, and each step of the reference "
        "begins at the session's state with the session's gradients pending: the update then differs by nothing",
    ),
    "int16": (
        {LOSS: 5e-3, STATE: 1e-5, GRADIENT: 5e-3},
        "as for int8, with ranges measured beforehand: 16 bits of an activation's range are about as fine as fp16, and "
        "what leaves the range is cut off",
    ),
    "fp16": (
        {LOSS: 5e-3, STATE: 1e-5, GRADIENT: 2e-2},
        "every value that leaves an operation has 11 bits, so a log-probability is off by some thousandths; as above, "
        "a projected gradient magnifies that, and each step begins at the session's state. The update and the noise "
        "are float32 on the CPU, so the state differs by nothing. A first-order gradient has been through some hundred "
        "roundings: of the query adapters, behind the softmax's gradient that subtracts what is nearly equal, it was "
        "off by up to 4.6e-3 with every result rounded to the nearest fp16, and by up to 1.0e-2 as the HTP computes",
    ),
    "integers": (
        {LOSS: 1e-3, STATE: 0.0, GRADIENT: 0.0},
        "integers are trained, which the two sides move by the same gradients: they are equal. The losses are float32, "
        "over integers that are equal",
    ),
    "integers, int8": (
        {LOSS: 5e-3, STATE: 0.0, GRADIENT: 0.0},
        "as above, over activations on int8 grids: as for int8, over many labels",
    ),
}


def _row(settings: Mapping[str, Any]) -> str:
    if "perturbation_bits" in settings:
        return "integers, int8" if settings["activation_bits"] == 8 else "integers"
    if settings["activations"] != "fp32":
        return str(settings["activations"])
    if settings.get("activation_bits") == 8:
        return "int8"
    # Bundles written before this setting was recorded compute in fp32.
    return str(settings.get("compute") or "fp32")


def rounds(settings: Mapping[str, Any]) -> bool:
    """Whether the two sides differ by roundings of what programs compute (see the table)."""
    return _row(settings) not in ("fp32", "integers")


def bounds(settings: Mapping[str, Any]) -> dict[str, float]:
    """The bounds for a bundle with these ``settings``."""
    return dict(_BOUNDS[_row(settings)][0])
