"""QuZO: its passes and its reference."""

from __future__ import annotations

from zoexport.core.types import Method, Pass
from zoexport.methods import methods
from zoexport.methods.quzo.config import QuzoConfig


def passes(config: QuzoConfig, targets: list[str]) -> list[Pass]:
    """All 2q perturbed copies go through a layer together; ``targets`` are the modules whose weights are trained."""
    from zoexport.methods.split import split_passes
    from zoexport.steps.spsa import spsa

    order = split_passes(config, targets, copies=2 * config.queries)
    return [*order, spsa(config.queries, "call")]


methods.register(
    "quzo",
    Method(
        name="quzo",
        summary="zeroth-order training of int8 and int4 weights themselves, which stay integers (QuZO)",
        config=QuzoConfig,
        passes=passes,
        reference_class="zoexport.methods.reference.quzo:QuzoReference",
    ),
)
