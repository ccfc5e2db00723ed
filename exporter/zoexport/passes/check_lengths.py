"""check_lengths: whether the programs can take rows of any length (``ir.lengths``).

Before: ``graph.any_length`` says that sizes follow the sequence wherever they are multiples of ``graph.length``.
After: it says so only if a program, its sizes and constants cut to half the length, still gives the log-probabilities
that it gave. No program changes. Left alone: a graph that was captured at its only length.
"""

from __future__ import annotations

from zoexport.core.types import TrainingGraph
from zoexport.ir.lengths import agrees_at_other_lengths


def check_lengths(graph: TrainingGraph, *, measured: str) -> TrainingGraph:
    """Try the program ``measured`` at another length."""
    graph.any_length = graph.any_length and agrees_at_other_lengths(graph, measured)
    return graph
