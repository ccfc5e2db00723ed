"""Running a method's passes, with a check of every rule after each."""

from __future__ import annotations

from collections.abc import Iterable

from zoexport.core.graph import TrainingGraph
from zoexport.core.progress import Progress
from zoexport.core.target import Pass
from zoexport.ir.verify import verify


def run_passes(graph: TrainingGraph, passes: Iterable[Pass], progress: Progress) -> TrainingGraph:
    """Apply ``passes`` in order; each is recorded in the graph's provenance and verified.

    Raises:
        VerifyError: a pass broke a rule.
    """
    for step in passes:
        progress(step.name, None)
        graph = step.apply(graph)
        graph.provenance.append(step.name)
        verify(graph)
    return graph
