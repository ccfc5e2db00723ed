"""Programs of a split bundle: what each costs in a step, and the share of unpacking weights in that."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.bench import products
from zoexport.bench.products import Content, Product
from zoexport.bench.runner import Sample
from zoexport.core import manifest as manifests

contents = functools.cache(products.contents)
"""What the programs of a bundle compute; a bundle is read once."""


def of_variant(bundle: Path, samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """An entry for each program that ran, in the manifest's order.

    ``direction`` is ``backward`` for programs that stages go backward with. ``seconds`` are of a step and
    ``call_seconds`` of a call, medians of the rounds, loading left out. ``planned_mb`` is what is planned for the
    program: values between its operators, without inputs and weights. ``gflop`` counts the products of a call.

    Args:
        bundle: a split one.
        samples: one a round.
    """
    manifest = manifests.read(bundle)
    backward = {
        stage.get(kind) for stage in manifest["stages"] for kind in ("backward", "from_saved")
    }
    found = []
    for program in manifest["programs"]:
        name, family = program["name"], program.get("family")  # an update belongs to none
        calls = samples[0].calls.get(name, 0)
        if not calls:
            continue
        content = contents(bundle)[name]
        seconds = statistics.median(sample.parts[name] for sample in samples)
        found.append(
            {
                "name": name,
                "family": family,
                "direction": "backward" if family and family in backward else "forward",
                "calls": round(calls, 4),
                "seconds": round(seconds, 6),
                "call_seconds": round(seconds / calls, 6),
                "planned_mb": round(content.planned_bytes / 1e6, 2),
                "gflop": round(content.flops / 1e9, 4),
            }
        )
    return found


def quantized_products(bundles: Sequence[Path], used: Sequence[str]) -> list[Product]:
    """Every product with packed weights in the programs ``used``, each once, larger ones last."""
    found = {
        product
        for bundle in bundles
        for name, content in contents(bundle).items()
        if name in used
        for product in content.products
        if product.quantized
    }
    return sorted(found, key=lambda product: (product.flops, str(product)))


def unpacking(
    entry: Mapping[str, Any],
    content: Mapping[str, Content],
    extra: Mapping[Product, float],
) -> dict[str, Any]:
    """The share of unpacking weights in the time of a variant's programs, and in its step.

    Args:
        entry: of the results, with ``programs``.
        content: of its bundle.
        extra: seconds that a product with packed weights takes longer than the same kernel's product of fp32 numbers;
            below zero where reading fp32 weights costs more than unpacking.

    Returns:
        ``seconds`` and ``share`` for ``forward``, ``backward`` and ``step``; None where a step has no such programs.
    """
    spent = {"forward": 0.0, "backward": 0.0}
    total = dict(spent)
    for program in entry["programs"]:
        products_of = content[program["name"]].products
        each_call = sum(
            extra[product] * count for product, count in products_of.items() if product.quantized
        )
        spent[program["direction"]] += each_call * program["calls"]
        total[program["direction"]] += program["seconds"]
    both, step = sum(spent.values()), entry["step_seconds"]
    return {
        "name": entry["name"],
        **{
            direction: {
                "seconds": round(spent[direction], 6),
                "share": round(spent[direction] / total[direction], 4),
            }
            if total[direction]
            else None
            for direction in spent
        },
        "step": {"seconds": round(both, 6), "share": round(both / step, 4)},
    }
