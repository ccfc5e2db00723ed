"""Which learning rate an arm of a comparison is compared at."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def best_rate(
    runs: Iterable[Mapping[str, Any]], validated: Callable[[Mapping[str, Any]], float | None]
) -> float | None:
    """The rate with the least mean of the validation's losses after the last step; none where every rate diverged.

    Only rates with all seeds that any rate has count.

    Args:
        runs: with ``rate``.
        validated: the loss of a run; None where it diverged.
    """
    losses: dict[float, list[float]] = {}
    for run in runs:
        last = validated(run)
        losses.setdefault(run["rate"], []).append(math.inf if last is None else last)
    most = max(map(len, losses.values()), default=0)
    means = {rate: statistics.mean(one) for rate, one in losses.items() if len(one) == most}
    finite = {rate: mean for rate, mean in means.items() if mean < math.inf}
    return min(finite, key=lambda rate: finite[rate], default=None)


def beyond(tried: Iterable[float], best: float | None) -> float | None:
    """The rate past an end that is the best, as far from it as the greatest two are apart; None where none is.

    Of fewer than two rates there is none.
    """
    rates = sorted(tried)
    if len(rates) < 2 or best not in (rates[0], rates[-1]):
        return None
    ratio = rates[-1] / rates[-2]
    return float(f"{best / ratio if best == rates[0] else best * ratio:.4g}")


def at_an_end(label: str, tried: Iterable[float], best: float | None) -> list[str]:
    """A line that says so where the best rate is the least or the greatest of several that were tried."""
    if beyond(tried, best) is None:
        return []
    return [f"- the best rate of {label} is at an end of those that were tried"]
