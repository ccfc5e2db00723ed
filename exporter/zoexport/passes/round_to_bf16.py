"""round_to_bf16: products of layers of numbers that are rounded to bfloat16 (``compute=bf16``).

Before::

    layer.0(hidden; W.codes, W.scales)    y = zoexport.linear_int4(hidden, W.codes, W.scales, bias)

After::

    layer.0(hidden; W.codes, W.scales)    y = zoexport.linear_int4_bf16(hidden, W.codes, W.scales, bias)

So are the gradients by their inputs, which are traced afterwards. Left in float32: the output head, whose losses are
compared; and all that is no product of a frozen quantized weight, adapters and attention too.
"""

from __future__ import annotations

from zoexport.core.graph import TrainingGraph
from zoexport.ir.graphs import is_call, zo
from zoexport.passes.split_layers import EMBEDDING, HEAD

_ROUNDED = {
    zo.linear_int4: zo.linear_int4_bf16.default,
    zo.linear_int8: zo.linear_int8_bf16.default,
}


def round_to_bf16(graph: TrainingGraph) -> TrainingGraph:
    """Round both factors of what layers multiply by quantized weights."""
    for family, program in graph.programs.items():
        if family in (EMBEDDING, HEAD):
            continue
        for node in program.module.graph.nodes:
            for plain, rounded in _ROUNDED.items():
                if is_call(node, plain):
                    node.target = rounded
    return graph
