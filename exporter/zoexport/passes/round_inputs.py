"""round_inputs: inputs of int4 layers rounded to 8 bits (``activations=int8``, ``generate.activations=int8``).

Before::

    layer.0(hidden; W.codes, W.scales)    y = zoexport.linear_int4(hidden, W.codes, W.scales, bias)

After::

    layer.0(hidden; W.codes, W.scales)    y = zoexport.rounded_linear_int4(hidden, W.codes, W.scales, bias)
"""

from __future__ import annotations

from zoexport.core.types import TrainingGraph
from zoexport.ir.graphs import is_call, zo


def round_inputs(graph: TrainingGraph) -> TrainingGraph:
    """Round what every int4 layer reads, and the output head."""
    for program in graph.programs.values():
        for node in program.module.graph.nodes:
            if is_call(node, zo.linear_int4):
                node.target = zo.rounded_linear_int4.default
        program.module.recompile()
    return graph
