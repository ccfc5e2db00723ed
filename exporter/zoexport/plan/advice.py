"""What to do with an estimate, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_WHY = (
    "First order needs far fewer steps, often 10 to 100 times: its gradient is exact, while a zeroth-order step"
    " learns one number a query about all trainable values together."
)
_LESS = (
    "Smaller batch, seq_len or lora.rank take less; otherwise choose a smaller model,"
    " or a smaller group of lora.targets."
)


def advice(
    sooner: str, first_order: bool, fits: bool | None, options: Sequence[Mapping[str, Any]]
) -> str:
    """One to three sentences.

    Args:
        sooner: of the method that was asked for. first_order: whether it is. fits: None without a budget.
        options: what fits, preferred first.
    """
    found = _of_first_order(first_order, fits, options)
    fitting = bool(options and options[0]["first_order"])
    return f"{found} {sooner}" if sooner and not fitting else found


def _of_first_order(
    first_order: bool, fits: bool | None, options: Sequence[Mapping[str, Any]]
) -> str:
    """Whether first order can be had, and what it is worth."""
    if fits is None:
        return (
            "First order: the fewest steps; --budget-mb N says whether it fits."
            if first_order
            else f"{_WHY} Plan it too, and choose a zeroth-order method where it does not fit."
        )
    best = options[0] if options else None
    if fits:
        if first_order:
            return f"It fits. {_WHY}"
        if best is not None and best["first_order"]:
            return f"It fits, but so does {_named(best)}, which is to be preferred. {_WHY}"
        return f"It fits; first order does not. {_WHY}"
    if best is None:
        return f"Nothing that was tried fits. {_LESS}"
    if best["first_order"]:
        return f"It does not fit; {_named(best)} does. {_WHY}"
    return f"It does not fit, and first order does not; {_named(best)} does. {_WHY} So expect many more steps."


def _named(option: Mapping[str, Any]) -> str:
    settings = " ".join(f"--set {key}={value}" for key, value in option["settings"].items())
    return f"--method {option['method']} {settings}".rstrip()
