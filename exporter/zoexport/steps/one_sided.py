"""one_sided: forward differences along random signs, over the losses' deviation (FZOO)."""

from __future__ import annotations

from zoexport.core.step_plan import Copies, ProbeLevel, StepPlan
from zoexport.core.types import Pass, TrainingGraph


def one_sided(queries: int, copies: Copies) -> Pass:
    """The plan of ``queries`` directions beside one probe without a move; see :class:`StepPlan` for ``copies``."""
    plan = StepPlan((ProbeLevel(0, queries, "forward"),), copies, "rademacher", "deviation")

    def state(graph: TrainingGraph) -> TrainingGraph:
        graph.step = plan
        return graph

    return Pass("one_sided", state, "states the step of the programs that there are by now")
