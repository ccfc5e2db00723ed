"""Figures of the variants and the ratios between them, from the samples of all rounds."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.session import Bundle
from zoexport.tools.bench.bundles import compiling
from zoexport.tools.bench.matrix import AUTOGRAD, BASELINES, EAGER, Variant, first_order
from zoexport.tools.bench.rounds import Round
from zoexport.tools.bench.runner import Sample


def results(
    variants: Sequence[Variant], rounds: Sequence[Round], bundles: Mapping[Variant, Path]
) -> list[dict[str, Any]]:
    """Return an entry per variant.

    ``step_seconds`` is the median over the rounds of a round's median; ``step_seconds_least`` and
    ``step_seconds_most`` are the extremes of the latter, ``step_seconds_fastest`` is a single step's.
    ``load_seconds`` is a median, the memory's peaks are maxima. ``calls_by_part`` counts the calls of each program in
    a step. ``compiling`` (``bundles.Compiling``) is None unless bench compiled the bundle.

    Args:
        bundles: that variants run; the baseline has none.
    """
    found = []
    for variant in variants:
        samples = [taken[str(variant)] for taken in rounds]
        medians = [_median(sample) for sample in samples]
        loads = [sample.load_seconds for sample in samples if sample.load_seconds is not None]
        parts = {
            part: statistics.median(sample.parts[part] for sample in samples)
            for part in samples[0].parts
        }
        total = sum(parts.values())
        manifest = Bundle.open(bundles[variant]).manifest if variant in bundles else None
        took = compiling(bundles[variant]) if variant in bundles else None
        found.append(
            {
                "name": str(variant),
                "method": variant.method,
                "weights": variant.weights,
                "activation_cache_mb": variant.activation_cache_mb,
                "activations": manifest["settings"]["activations"] if manifest else "fp32",
                **dataclasses.asdict(variant.shape),
                # Bundles compiled here have descriptive names; their paths are local.
                "bundle": str(variant.bundle or bundles[variant].name) if manifest else None,
                "bundle_bytes": sum(entry["bytes"] for entry in manifest["files"].values())
                if manifest
                else None,
                "compiling": dataclasses.asdict(took) if took else None,
                "step_seconds": round(statistics.median(medians), 6),
                "step_seconds_least": round(min(medians), 6),
                "step_seconds_most": round(max(medians), 6),
                "step_seconds_fastest": round(_fastest(variant, rounds), 6),
                "round_seconds": [round(value, 6) for value in medians],
                "steps": sum(len(sample.seconds) for sample in samples),
                "seconds_by_part": {part: round(value, 6) for part, value in parts.items()},
                "share_by_part": {part: round(value / total, 4) for part, value in parts.items()},
                "calls_by_part": {part: round(n, 4) for part, n in samples[0].calls.items()},
                "load_seconds": round(statistics.median(loads), 4) if loads else None,
                "peak_anonymous_mb": _largest([sample.peak_anonymous_mb for sample in samples]),
                "peak_rss_mb": _largest([sample.peak_rss_mb for sample in samples]),
            }
        )
    return found


def ratios(variants: Sequence[Variant], rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Compute ratios between variants: the median over the rounds, with the extremes.

    ``ratio_of_fastest`` compares the fastest steps, which other load on the machine disturbs least.

    Kinds: ``faster than eager`` and ``prge faster than mezo`` (speed-ups, more is better); ``fewer layers`` (a step's
    time with ``lora.layers_to_transform=last:K`` over all layers, less is better); ``spread over queries`` (of variants
    that differ in q at the same q * B: the slowest over the fastest, 1 is best). Of a first-order method, less is
    better: ``step over mezo`` (a step of two forward passes through the same layer-wise programs),
    ``step over autograd``, and ``anonymous MB over`` and ``peak MB over`` both, ratios of the most in all rounds.
    """
    found = []
    for variant in variants:
        if variant.method in BASELINES:
            continue
        if first_order(variant.method):
            found += _over_others(variant, variants, rounds)
            continue
        others = {
            "faster than eager": _like(variant, variants, method=EAGER, weights="fp32"),
            "prge faster than mezo": _like(variant, variants, method="mezo")
            if variant.method == "prge"
            else None,
        }
        for kind, other in others.items():
            if other:
                found.append(_ratio(kind, other, variant, rounds, of=variant, to=other))
    for variant in variants:
        whole = variant.shape.layers != "all" and _like(variant, variants, layers="all")
        if whole and variant.method not in BASELINES:
            found.append(_ratio("fewer layers", variant, whole, rounds, of=variant, to=whole))
    return found + _spreads(variants, rounds)


def _over_others(
    variant: Variant, variants: Sequence[Variant], rounds: Sequence[Round]
) -> list[dict[str, Any]]:
    plain = dataclasses.replace(variant, activation_cache_mb=None)
    others = {
        "mezo": _like(plain, variants, method="mezo"),
        AUTOGRAD: _like(plain, variants, method=AUTOGRAD, weights="fp32"),
    }
    found = []
    for name, other in others.items():
        if other:
            found.append(_ratio(f"step over {name}", variant, other, rounds, of=variant, to=other))
            for kind, key in (("anonymous MB", "peak_anonymous_mb"), ("peak MB", "peak_rss_mb")):
                above, below = (
                    _largest([getattr(taken[str(one)], key) for taken in rounds])
                    for one in (variant, other)
                )
                if above and below:
                    found.append(
                        {
                            "kind": f"{kind} over {name}",
                            "of": str(variant),
                            "to": str(other),
                            "ratio": round(above / below, 4),
                            "ratio_least": None,
                            "ratio_most": None,
                            "ratio_of_fastest": None,
                        }
                    )
    return found


def _spreads(variants: Sequence[Variant], rounds: Sequence[Round]) -> list[dict[str, Any]]:
    groups: dict[Variant, list[Variant]] = {}
    for variant in variants:
        shape = variant.shape
        key = dataclasses.replace(
            variant,
            bundle=None,
            shape=dataclasses.replace(
                shape, batch_size=shape.batch_size * shape.num_queries, num_queries=1
            ),
        )
        groups.setdefault(key, []).append(variant)
    found = []
    for key, group in groups.items():
        if len({variant.shape.num_queries for variant in group}) < 2 or key.method in BASELINES:
            continue
        # To the round's own first one: the largest of several noisy times would grow with their number.
        to_first = [statistics.median(_times(variant, rounds, group[0])) for variant in group]
        fastest = [_fastest(variant, rounds) for variant in group]
        found.append(
            {
                "kind": "spread over queries",
                "of": [str(variant) for variant in group],
                "to": str(group[0]),
                "ratio": round(max(to_first) / min(to_first), 4),
                "ratio_least": None,
                "ratio_most": None,
                "ratio_of_fastest": round(max(fastest) / min(fastest), 4),
                "to_first": [round(value, 4) for value in to_first],
            }
        )
    return found


def _ratio(
    kind: str, above: Variant, below: Variant, rounds: Sequence[Round], *, of: Variant, to: Variant
) -> dict[str, Any]:
    values = _times(above, rounds, below)
    return {
        "kind": kind,
        "of": str(of),
        "to": str(to),
        "ratio": round(statistics.median(values), 4),
        "ratio_least": round(min(values), 4),
        "ratio_most": round(max(values), 4),
        "ratio_of_fastest": round(_fastest(above, rounds) / _fastest(below, rounds), 4),
    }


def _times(variant: Variant, rounds: Sequence[Round], other: Variant) -> list[float]:
    """Return the time of a step of ``variant`` over that of ``other``, in each round."""
    return [_median(taken[str(variant)]) / _median(taken[str(other)]) for taken in rounds]


def _fastest(variant: Variant, rounds: Sequence[Round]) -> float:
    """Return the fastest of all steps."""
    return min(min(taken[str(variant)].seconds) for taken in rounds)


def _like(
    variant: Variant,
    variants: Sequence[Variant],
    *,
    method: str | None = None,
    weights: str | None = None,
    layers: str | None = None,
) -> Variant | None:
    """Return the variant that differs from another in these fields only."""
    wanted = dataclasses.replace(
        variant,
        method=method or variant.method,
        weights=weights or variant.weights,
        shape=dataclasses.replace(variant.shape, layers=layers or variant.shape.layers),
    )
    if wanted in variants:
        return wanted
    # Bundles that the user gave are of one model, but each has a folder of its own.
    for other in variants:
        if dataclasses.replace(other, bundle=variant.bundle) == wanted:
            return other
    return None


def _median(sample: Sample) -> float:
    return statistics.median(sample.seconds)


def _largest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None
