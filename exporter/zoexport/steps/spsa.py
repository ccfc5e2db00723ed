"""spsa: every direction moves all that is trained (SPSA; MeZO, P-RGE equation 3)."""

from __future__ import annotations

from zoexport.core.step_plan import Copies, ProbeLevel, StepPlan
from zoexport.core.types import Pass, TrainingGraph


def spsa(queries: int, copies: Copies, difference: str = "central") -> Pass:
    """The plan of ``queries`` directions; see :class:`StepPlan` for ``copies`` and :class:`ProbeLevel`."""
    plan = StepPlan((ProbeLevel(0, queries, difference),), copies)

    def state(graph: TrainingGraph) -> TrainingGraph:
        graph.step = plan
        return graph

    return Pass("spsa", state, "states the step of the programs that there are by now")
