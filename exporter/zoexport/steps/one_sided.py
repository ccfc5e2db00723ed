"""one_sided: forward differences along random signs, over the losses' deviation (FZOO)."""

from __future__ import annotations

from zoexport.core.step_plan import Copies, ProbeLevel, StepPlan, UpdateRule
from zoexport.core.types import Pass, TrainingGraph


def one_sided(queries: int, copies: Copies, update: UpdateRule | None = None) -> Pass:
    """The plan of ``queries`` directions beside one probe without a move; see :class:`StepPlan` for the others."""
    level = ProbeLevel(0, queries, "forward")
    plan = StepPlan((level,), copies, "rademacher", "deviation", update)

    def state(graph: TrainingGraph) -> TrainingGraph:
        graph.step = plan
        return graph

    return Pass("one_sided", state, "states the step of the programs that there are by now")
