"""round_inputs: inputs of int4 and int8 layers rounded to 8 bits (``activations``, ``generate.activations``).

Before::

    layer.0(hidden; W.codes, W.scales)    y = zoexport.linear_int4(hidden, W.codes, W.scales, bias)

After::

    layer.0(hidden; W.codes, W.scales)    y = zoexport.rounded_linear(hidden, W.codes, W.scales, bias)

Left alone: int8 layers whose inputs are not made of whole groups of 32.
"""

from __future__ import annotations

from zoexport.core.graph import TrainingGraph
from zoexport.ir.graphs import is_call, operand, shape_of, zo
from zoexport.ir.product_ops import ROUNDED_GROUP


def round_inputs(graph: TrainingGraph) -> TrainingGraph:
    """Round what every quantized layer reads, and the output head."""
    for program in graph.programs.values():
        for node in program.module.graph.nodes:
            if (
                is_call(node, zo.linear_int4, zo.linear_int8)
                and shape_of(operand(node))[-1] % ROUNDED_GROUP == 0
            ):
                node.target = zo.rounded_linear.default
    return graph
