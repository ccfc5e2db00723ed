"""label_logprobs: only label positions reach the output head, and only log-probabilities leave.

Before::

    logits = head(aten.linear(hidden, W))                       # (rows, seq, vocabulary)

After, with the inputs ``label_positions`` and ``label_tokens`` (both (M,), M known when the program runs)::

    rows    = aten.reshape(hidden, [copies, -1, width])
    chosen  = aten.index_select(rows, 1, label_positions)       # (copies, M, width)
    logits  = head(aten.linear(chosen, W))                      # (copies, M, vocabulary)
    label_logprobs, label_is_argmax = zoexport.label_logprobs(logits, label_tokens)

``head`` is what follows the last linear layer and works on each element alone (Gemma's soft cap, Granite's
scaling). Left alone: everything before the last linear layer; if something else stands in
between, the rows are chosen there instead.
"""

from __future__ import annotations

import operator

import torch

from zoexport.core.graph import Dim, Program, TrainingGraph, Value
from zoexport.ir.graphs import (
    add_input,
    aten,
    copy_program,
    is_call,
    operand,
    output_node,
    outputs,
    record,
    set_outputs,
    shape_of,
    zo,
)

_ELEMENTWISE = (aten.mul, aten.div, aten.add, aten.sub, aten.tanh, aten.neg, aten.to, aten._to_copy)


def label_logprobs(graph: TrainingGraph, *, max_labels: int) -> TrainingGraph:
    """Give ``train`` its outputs, and derive ``evaluate`` (one copy, master weights) from ``forward``.

    Args:
        max_labels: the most label entries of one call.
    """
    labels = Dim("labels", 1, max_labels)
    evaluate = copy_program(graph.programs.pop("forward"), "evaluate")
    graph.programs["evaluate"] = evaluate
    graph.max_labels = max_labels
    for name, program in graph.programs.items():
        _select_labels(program, labels, 1 if name == "evaluate" else graph.copies)
    return graph


def _select_labels(program: Program, labels: Dim, copies: int) -> None:
    positions = add_input(program, Value("label_positions", "label_positions", "int64", (labels,)))
    tokens = add_input(program, Value("label_tokens", "label_tokens", "int64", (labels,)))
    rest = [
        (value, node)
        for value, node in zip(program.outputs, outputs(program).values(), strict=True)
        if value.role != "logits"
    ]
    logits = outputs(program)["logits"]
    source, reader = _before_head(logits)
    nodes = program.module.graph
    width = shape_of(source)[-1]
    with nodes.inserting_before(reader):
        rows = record(nodes, source, aten.reshape.default, source, [copies, -1, int(width)])
        chosen = record(nodes, source, aten.index_select.default, rows, 1, positions)
    reader.replace_input_with(source, chosen)
    logits = outputs(program)["logits"]
    with nodes.inserting_before(output_node(program.module)):
        pair = nodes.call_function(zo.label_logprobs.default, (logits, tokens))
        logprobs = record(nodes, logits, operator.getitem, pair, 0)
        is_argmax = record(nodes, logits, operator.getitem, pair, 1)
    results = [
        (Value("label_logprobs", "label_logprobs", "float32", (copies, labels)), logprobs),
    ]
    if program.name == "evaluate":
        results.append(
            (Value("label_is_argmax", "label_is_argmax", "float32", (1, labels)), is_argmax)
        )
    set_outputs(program, results + rest)
    nodes.eliminate_dead_code()


def _before_head(logits: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node]:
    """Return the value whose rows are chosen, and the node that reads it."""
    reader, node = next(iter(logits.users)), logits
    while is_call(node, *_ELEMENTWISE) and (source := _only_tensor(node)) is not None:
        reader, node = node, source
    if is_call(node, aten.linear) and len(node.users) == 1:
        return operand(node), node
    return node, reader


def _only_tensor(node: torch.fx.Node) -> torch.fx.Node | None:
    """The one input of a computation that changes each element alone."""
    inputs = node.all_input_nodes
    return inputs[0] if len(inputs) == 1 and len(node.users) == 1 else None
