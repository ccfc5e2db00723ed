"""SensZOQ: zeroth-order training of the most sensitive weights over quantized ones."""

from __future__ import annotations

import dataclasses

from zoexport.core.config import setting
from zoexport.core.settings import TrainingSettings
from zoexport.core.target import Method, Pass
from zoexport.methods import methods
from zoexport.methods.steps import spsa


@dataclasses.dataclass(frozen=True)
class SenszoqConfig(TrainingSettings):
    """Settings of ``senszoq`` for ``--set`` and recipes."""

    mask: str | None = setting(
        None, help="mask file with the trained weights, from 'zoexport sensitivity'"
    )
    num_queries: int = setting(4, at_least=1, help="random directions per step (q)")
    eps: float = setting(1e-3, above=0, phase="run", help="perturbation scale")
    learning_rate: float = setting(1e-4, above=0, phase="run", help="learning rate")

    @property
    def trained(self) -> str:
        """Kind of training: sparse weights."""
        return "sparse"

    @property
    def perturbs_weights(self) -> bool:
        """True: the sparse weights are perturbed."""
        return True

    @property
    def density(self) -> float:
        """Share of trained weights in the paper, used to estimate sizes without a mask."""
        return 1e-3


def passes(config: SenszoqConfig, targets: list[str]) -> list[Pass]:
    """Return the passes that run all 2q perturbed copies in one call.

    ``targets`` contain the sparse weights.
    """
    from zoexport.methods.split import split_passes
    from zoexport.passes.update_program import update_program

    return [
        *split_passes(config, targets, copies=2 * config.num_queries),
        Pass(
            "update_program",
            lambda graph: update_program(graph, config.num_queries),
            "has no sizes to choose and belongs to no stage",
        ),
        spsa(config.num_queries, "call"),
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
