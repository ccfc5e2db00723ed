"""What a GPU did in a step: dispatches by their kind, with the time, the operations and the bytes of each."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from zoexport.bench.runner import Sample

NOTE = (
    "Dispatches of a step by kind. s/step: by the device's own clock, share: of all of them; empty where it has none. "
    "GFLOP and GB follow from sizes: each addition, product or function is one operation, and of what a dispatch reads "
    "and writes each word counts once."
)


def of_variant(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """An entry for each kind that ran, seconds being medians of the rounds; nothing of engines that do not count.

    Args:
        samples: one a round.
    """
    kinds = samples[0].kernels
    seconds = {name: _seconds(name, samples) for name in kinds}
    known = [one for one in seconds.values() if one is not None]
    found = []
    for name, cost in kinds.items():
        taken, flops, moved = seconds[name], float(cost["flops"] or 0), float(cost["bytes"] or 0)
        found.append(
            {
                "name": name,
                "dispatches": round(float(cost["dispatches"] or 0), 4),
                "seconds": None if taken is None else round(taken, 6),
                "share": round(taken / sum(known), 4) if taken else None,
                "gflop": round(flops / 1e9, 4),
                "gb": round(moved / 1e9, 4),
                "gflop_s": round(flops / taken / 1e9, 2) if taken else None,
                "gb_s": round(moved / taken / 1e9, 2) if taken else None,
            }
        )
    return found


def _seconds(name: str, samples: Sequence[Sample]) -> float | None:
    taken = [sample.kernels[name]["seconds"] for sample in samples]
    known = [seconds for seconds in taken if seconds is not None]
    return statistics.median(known) if known else None
