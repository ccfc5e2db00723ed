"""score_rows: the output head and the log-probabilities of its logits as one operator, so that no logits are kept.

Before, as ``passes.score_labels`` and ``passes.round_inputs`` leave it (here int4 weights, int8 activations)::

    logits = cap * tanh(zoexport.rounded_linear(hidden (C, M, K), codes, scales, bias) / cap)
    logprobs, is_argmax = zoexport.label_logprobs(logits, label_tokens)

After::

    logprobs, is_argmax = zoexport.rounded_linear_label_logprobs_int4(
        hidden, codes, scales, bias, 1.0, cap, label_tokens)

Left alone: a head that adapters are added to, one of int8 weights, and one whose
logits need more than a factor or a soft cap.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from zoexport.core.graph import Program
from zoexport.ir.graphs import RESHAPES, arguments, aten, call, is_call, operand, shape_of, zo

_FUSED: dict[Any, Any] = {
    aten.linear: zo.linear_label_logprobs.default,
    zo.linear_int4: zo.linear_label_logprobs_int4.default,
    zo.rounded_linear: zo.rounded_linear_label_logprobs_int4.default,
}
"""By the operator of a head, the one that scores labels."""


def score_rows(program: Program) -> Program:
    """Rewrite every such head in place."""
    nodes = program.module.graph
    for node in list(nodes.nodes):
        if not is_call(node, zo.label_logprobs):
            continue
        logits, tokens = arguments(node)
        found = _head(logits)
        if found is None:
            continue
        linear, scale, cap = found
        with nodes.inserting_before(node):
            x, *weight = arguments(linear)
            bias = [] if len(weight) > (1 if is_call(linear, aten.linear) else 2) else [None]
            given = (x, *weight, *bias, scale, cap, tokens)
            target: Any = linear.target
            fused = call(nodes, _FUSED[target.overloadpacket], *given)
        node.replace_all_uses_with(fused)
        nodes.erase_node(node)
    nodes.eliminate_dead_code()
    return program


def _head(logits: Node) -> tuple[Node, float, float] | None:
    """The linear layer, the factor of its results, and what tanh caps them at (0: nothing)."""
    node, after, before, capped = logits, 1.0, 1.0, False
    while not is_call(node, *_FUSED):
        if len(node.users) != 1:
            return None
        if is_call(node, aten.tanh) and not capped:
            capped, after, before = True, before, 1.0
        elif is_call(node, aten.mul, aten.div) and isinstance(node.args[1], int | float):
            factor = float(node.args[1])
            before *= factor if is_call(node, aten.mul) else 1 / factor
        elif not is_call(node, *RESHAPES) or shape_of(node)[-1] != shape_of(operand(node))[-1]:
            return None
        node = operand(node)
    if len(node.users) != 1 or len(shape_of(operand(node))) != 3:
        return None
    if is_call(node, zo.rounded_linear) and operand(node, 1).meta["val"].dtype == torch.int8:
        return None
    # cap * tanh(scale * y / cap)
    scale, cap = (after * before, after) if capped else (before, 0.0)
    return (node, scale, cap) if cap >= 0 and math.isfinite(scale) else None
