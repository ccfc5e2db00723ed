"""score_labels: the output head gives the log-probabilities of labels, and not logits.

Before::

    logits = head(hidden (C, width))                                    # (C, vocabulary)

After, with the input ``label_tokens`` (C,)::

    label_logprobs, label_is_argmax = zoexport.label_logprobs(logits, label_tokens)      # (C,) each

C is small, so no call holds sequence x vocabulary values. Left alone: every other program.
"""

from __future__ import annotations

import operator

from zoexport.core.graph import TrainingGraph, Value
from zoexport.ir.graphs import (
    add_input,
    aten,
    call,
    output_node,
    outputs,
    set_outputs,
    shape_of,
    zo,
)
from zoexport.passes.split_layers import HEAD


def score_labels(graph: TrainingGraph) -> TrainingGraph:
    """Rewrite the output head."""
    program = graph.programs[HEAD]
    logits = outputs(program)["logits"]
    count, width = shape_of(logits)
    labels = add_input(program, Value("label_tokens", "label_tokens", "int64", (count,)))
    nodes = program.module.graph
    with nodes.inserting_before(output_node(program.module)):
        copies = call(nodes, aten.reshape.default, logits, [1, count, width])
        pair = call(nodes, zo.label_logprobs.default, copies, labels)
        found = []
        for number, role in enumerate(("label_logprobs", "label_is_argmax")):
            one = call(nodes, operator.getitem, pair, number)
            flat = call(nodes, aten.reshape.default, one, [count])
            found.append((Value(role, role, "float32", (count,)), flat))
    set_outputs(program, found)
    return graph
