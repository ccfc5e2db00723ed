"""score_rows: the output head and the log-probabilities of its logits as one operator, so that no logits are kept.

Before, as ``passes.label_logprobs`` and ``passes.quantize_weights`` leave it (here int4 weights, int8 activations)::

    logits = cap * tanh(zoexport.rounded_linear_int4(hidden (C, M, K), codes, scales, bias) / cap)
    logprobs, is_argmax = zoexport.label_logprobs(logits, label_tokens)

After::

    logprobs, is_argmax = zoexport.rounded_linear_label_logprobs_int4(
        hidden, codes, scales, bias, 1.0, cap, label_tokens)

Left alone: a head that adapters are added to, one of int8 weights, and one of which something else than a factor or a
soft cap makes the logits.
"""

from __future__ import annotations

import math

from torch.fx import Node

from zoexport.core.types import Program
from zoexport.ir.graphs import arguments, aten, call, is_call, operand, shape_of, zo


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
            fused = _fused(program, linear, scale, cap, tokens)
        if fused is not None:
            node.replace_all_uses_with(fused)
            nodes.erase_node(node)
    nodes.eliminate_dead_code()
    program.module.recompile()
    return program


def _head(logits: Node) -> tuple[Node, float, float] | None:
    """The linear layer, the factor of its results, and what tanh caps them at (0: nothing)."""
    node, after, before, capped = logits, 1.0, 1.0, False
    while not is_call(node, aten.linear, zo.rounded_linear_int4):
        if len(node.users) != 1:
            return None
        if is_call(node, aten.tanh) and not capped:
            capped, after, before = True, before, 1.0
        elif is_call(node, aten.mul, aten.div) and isinstance(node.args[1], int | float):
            factor = float(node.args[1])
            before *= factor if is_call(node, aten.mul) else 1 / factor
        else:
            return None
        node = operand(node)
    if len(node.users) != 1 or len(shape_of(operand(node))) != 3:
        return None
    # cap * tanh(scale * y / cap)
    scale, cap = (after * before, after) if capped else (before, 0.0)
    return (node, scale, cap) if cap >= 0 and math.isfinite(scale) else None


def _fused(program: Program, linear: Node, scale: float, cap: float, tokens: Node) -> Node | None:
    nodes = program.module.graph
    if is_call(linear, zo.rounded_linear_int4):
        rounded = zo.rounded_linear_label_logprobs_int4.default
        return call(nodes, rounded, *arguments(linear), scale, cap, tokens)
    x, weight, *rest = arguments(linear)
    bias = rest[0] if rest else None
    if is_call(weight, zo.dequantize_int4):
        packed = zo.linear_label_logprobs_int4.default
        return call(nodes, packed, x, *arguments(weight), bias, scale, cap, tokens)
    if is_call(weight, zo.dequantize_int8):
        return None
    return call(nodes, zo.linear_label_logprobs.default, x, weight, bias, scale, cap, tokens)
