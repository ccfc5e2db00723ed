"""score_rows: the output head and the log-probabilities of its logits as one operator, so that no logits are kept.

Before, as ``passes.label_logprobs`` and ``passes.quantize_weights`` leave it (here int4 weights, int8 activations)::

    x = zoexport.fake_quantize_int8_rows(hidden (C, M, K))
    logits = cap * tanh(aten.linear(x, zoexport.dequantize_int4(codes, scales), bias) / cap)
    logprobs, is_argmax = zoexport.label_logprobs(logits, label_tokens)

After::

    logprobs, is_argmax = zoexport.rounded_linear_label_logprobs_int4(
        hidden, codes, scales, bias, 1.0, cap, label_tokens)

x is rounded in groups of 32 then, and not by row, which is finer. Left alone: a head that adapters are added to, one of
int8 weights, and one of which something else than a factor or a soft cap makes the logits.
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
    while not is_call(node, aten.linear):
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
    x, weight, *rest = arguments(linear)
    bias = rest[0] if rest else None
    rounds = is_call(x, zo.fake_quantize_int8_rows)
    if is_call(weight, zo.dequantize_int4):
        codes, scales = arguments(weight)
        operator = (
            zo.rounded_linear_label_logprobs_int4 if rounds else zo.linear_label_logprobs_int4
        )
        rows = operand(x) if rounds else x
        return call(nodes, operator.default, rows, codes, scales, bias, scale, cap, tokens)
    if is_call(weight, zo.dequantize_int8) or rounds:
        return None
    return call(nodes, zo.linear_label_logprobs.default, x, weight, bias, scale, cap, tokens)
