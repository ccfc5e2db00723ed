"""spsa: every direction moves all that is trained (SPSA; MeZO, P-RGE equation 3)."""

from __future__ import annotations

from zoexport.core.step_plan import Copies, ProbeLevel, StepPlan, UpdateRule
from zoexport.core.types import Pass, TrainingGraph


def spsa(
    queries: int, copies: Copies, difference: str = "central", update: UpdateRule | None = None
) -> Pass:
    """The plan of ``queries`` directions; see :class:`StepPlan` for the others and :class:`ProbeLevel`."""
    plan = StepPlan((ProbeLevel(0, queries, difference),), copies, update=update)

    def state(graph: TrainingGraph) -> TrainingGraph:
        graph.step = plan
        return graph

    return Pass("spsa", state, "states the step of the programs that there are by now")
