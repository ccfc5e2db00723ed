"""SensZOQ: its passes and its reference."""

from __future__ import annotations

from zoexport.core.types import Method, Pass
from zoexport.methods import methods
from zoexport.methods.senszoq.config import SenszoqConfig


def passes(config: SenszoqConfig, targets: list[str]) -> list[Pass]:
    """All 2q perturbed copies go through a layer together; weights are chosen from those of ``targets``."""
    from zoexport.methods.split import split_passes
    from zoexport.passes.update_program import update_program
    from zoexport.steps.spsa import spsa

    return [
        *split_passes(config, targets, copies=2 * config.queries),
        Pass(
            "update_program",
            lambda graph: update_program(graph, config.queries),
            "has no sizes to choose and belongs to no stage",
        ),
        spsa(config.queries, "call"),
    ]


methods.register(
    "senszoq",
    Method(
        name="senszoq",
        summary="zeroth-order training of the 0.1 % most sensitive weights, in fp16 over quantized ones (SensZOQ)",
        config=SenszoqConfig,
        passes=passes,
        reference_class="zoexport.methods.reference.senszoq:SenszoqReference",
    ),
)
