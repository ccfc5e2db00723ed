"""Parity bounds: one table, a reason beside each row.

A bundle's row is chosen by its activations. Errors are relative: of losses, |device - reference| / |reference|; of the
state and gradients, the norm of the difference over the norm of the reference, largest over the tensors.
"""

from __future__ import annotations

LOSS, STATE = "loss", "state"

_BOUNDS: dict[str, tuple[dict[str, float], str]] = {
    "fp32": (
        {LOSS: 1e-4, STATE: 1e-3},
        "both sides compute in float32 from the same weights; a projected gradient divides the difference of "
        "two losses by 2 eps, so the state loses the digits that the difference cancels",
    ),
    "int8": (
        {LOSS: 5e-3, STATE: 1e-5},
        "an activation near a rounding boundary may fall on either side and takes those after it along, which "
        "moves a loss by up to a few parts in a thousand, and a projected gradient by that over 2 eps: two free "
        "runs drift apart like two draws of noise. So each step of the reference begins at the session's state "
        "with the session's gradients pending: its losses then differ by rounding, and the update by nothing",
    ),
}


def follows_the_session(activations: str) -> bool:
    """Whether the reference begins each step at the session's state instead of its own (see the table)."""
    return activations == "int8"


def bounds(activations: str) -> dict[str, float]:
    """The bounds for a bundle's ``activations``."""
    return dict(_BOUNDS[activations][0])
