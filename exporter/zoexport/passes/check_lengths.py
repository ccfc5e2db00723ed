"""check_lengths: whether the programs can take rows of any length (``ir.lengths``).

Nothing changes. A program, its sizes and constants cut to half the length, must still give the log-probabilities that
it gave. Left alone: a graph that was captured at its only length.
"""

from __future__ import annotations

from zoexport.core.graph import TrainingGraph
from zoexport.ir.lengths import FixedLength, agrees_at_other_lengths


def check_lengths(graph: TrainingGraph, *, measured: str) -> TrainingGraph:
    """Try the program ``measured`` at another length.

    Raises:
        FixedLength: it says something else of shorter rows.
    """
    if graph.any_length and not agrees_at_other_lengths(graph, measured):
        raise FixedLength
    return graph
