"""Parity bounds: one table with a reason for each row.

A bundle's row is chosen by its activations and arithmetic. Errors are relative: of losses,
|device - reference| / |reference|; of the state and of first-order gradients, the norm of the difference over the norm
of the reference, largest over the tensors. Of a difference of two losses, the projected gradients of zeroth-order
methods, it is what |device - reference| exceeds the resolution of the arithmetic by (``compiler.parity_resolution``),
over |reference|.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from zoexport.core.settings import TrainingSettings

LOSS, STATE, GRADIENT, DIFFERENCE = "loss", "state", "gradient", "difference"

Arithmetic = Literal["float32", "float16", "unrounded"]
"""How far apart two computations of one loss can be, by what they round (``compiler.parity_resolution.computing``)."""

_BOUNDS: dict[str, tuple[dict[str, float], str]] = {
    "fp32": (
        {LOSS: 1e-4, STATE: 1e-3, GRADIENT: 1e-4, DIFFERENCE: 1e-3},
        "the device computes in float32, and so does the reference of a zeroth-order method; that of a first-order one "
        "computes in float64, as autograd in float32 was up to 1.5e-4 away from it itself. AdamW divides a gradient by "
        "its own size, so that the smallest ones, whose digits are roundings, move the state as far as the others: "
        "gradients are compared at one state, and updates by one gradient. So are projected gradients, which divide "
        "the difference of two losses by 2 eps: where these agree in all but their last digits, it has no more digits "
        "than that, and free runs drift apart",
    ),
    "int8": (
        {LOSS: 5e-3, STATE: 1e-5, GRADIENT: 5e-3, DIFFERENCE: 5e-3},
        "an activation near a rounding boundary may fall on either side, and takes those after it along: from the "
        "smallest difference in float32 the two sides come to differ by as much as int8 rounding itself moves a "
        "log-probability. That averages out over a few hundred labels of the whole vocabulary, and not in a "
        "difference of two choices' scores. So the loss is compared over many labels, and the update, of the same "
        "projected gradients, differs by nothing",
    ),
    "int16": (
        {LOSS: 5e-3, STATE: 1e-5, GRADIENT: 5e-3, DIFFERENCE: 5e-3},
        "as for int8, with ranges measured beforehand: 16 bits of an activation's range are about as fine as fp16, and "
        "what leaves the range is cut off",
    ),
    "fp16": (
        {LOSS: 5e-3, STATE: 1e-5, GRADIENT: 2e-2, DIFFERENCE: 2e-2},
        "every value that leaves an operation has 11 bits, so a log-probability is off by some thousandths. The "
        "update and the noise are float32 on the CPU, so the state differs by nothing. A first-order gradient has been "
        "through some hundred roundings: of the query adapters, behind the softmax's gradient that subtracts what is "
        "nearly equal, it was off by up to 4.6e-3 with every result rounded to the nearest fp16, and by up to 1.0e-2 "
        "as the HTP computes. A difference of losses is along a direction that is rounded too, and so is as far off as "
        "a gradient",
    ),
    "bf16": (
        {LOSS: 1e-3, STATE: 1e-5, GRADIENT: 1e-1, DIFFERENCE: 2e-2},
        "a number near the middle of two bfloat16 may fall on either side, and takes those after it along. Of "
        "SmolLM2-135M the two sides came to differ by 5.7e-2 in the gradient of one adapter (of layer 0, by which the "
        "roundings of all others pass) and by 2.1e-2 in all gradients together, where rounding itself moved these by "
        "2.1e-1 and 9.3e-2; by 7.8e-5 in the loss. Of tiny models, with few layers, by 2.6e-3 and 2.8e-5",
    ),
    "integers": (
        {LOSS: 1e-3, STATE: 0.0, GRADIENT: 0.0, DIFFERENCE: 1e-3},
        "integers are trained, which the two sides move by the same gradients: they are equal. The losses are float32, "
        "over integers that are equal",
    ),
    "integers, int8": (
        {LOSS: 5e-3, STATE: 0.0, GRADIENT: 0.0, DIFFERENCE: 5e-3},
        "as above, over activations on int8 grids: as for int8, over many labels",
    ),
}

_ARITHMETIC: dict[str, Arithmetic] = {
    "fp32": "float32",
    "integers": "float32",
    "fp16": "float16",
}


def rounds(config: TrainingSettings) -> bool:
    """Return whether device and reference differ by rounding in the programs (see the table)."""
    return config.rounding not in ("fp32", "integers")


def arithmetic(config: TrainingSettings) -> Arithmetic | None:
    """Return the arithmetic that rounds a bundle's losses; None if the target chose the ranges.

    Such ranges come from the target's quantizer, unknown to the reference: with 16-bit activations
    differences of 0.03 were off by up to 0.0046, and rounding each result to 16 bits of its own range explains 1e-4.
    """
    if config.activations not in (None, "fp32") and config.compute == "fp16":
        return None
    return _ARITHMETIC.get(config.rounding, "unrounded")


def bounds(config: TrainingSettings) -> dict[str, float]:
    """Return the bounds for a bundle; differences have one only if resolution is measurable."""
    found = dict(_BOUNDS[config.rounding][0])
    if arithmetic(config) is None:
        found.pop(DIFFERENCE, None)
    return found
