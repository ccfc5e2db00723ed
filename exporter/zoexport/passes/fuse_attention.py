"""fuse_attention: attention over all tokens of a row becomes one operator, which makes no matrix of scores.

Before, with a constant mask, for B rows of T tokens, H heads over N groups::

    s = aten.matmul(q, aten.transpose(repeat(k), 2, 3))       # repeat: once for each query head of a group
    p = aten.softmax(s * 0.25 + mask, -1)
    o = aten.matmul(p, repeat(v))                             # (B, H, T, E)

After::

    r = zoexport.attention(qT, kT, vT, None, 0.25, True, 0)   # qT = aten.transpose(q, 1, 2), and so on
    o = aten.transpose(r[0], 1, 2)

Heads lie side by side in each token's row there, as the linear layers before and after have them. What a mask hides is
found by its values: of causal models all tokens that follow, and of sliding windows those that lie further back. Stages
whose masks differ get programs of their own. A mask of padding (``mask_padding``) is the operator's bias.

Left alone, as they were captured: scores that are capped, biases that depend on the distance (ALiBi), masks that hide
other tokens, and everything else that the operator lacks.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import torch
from torch.fx import Node

from zoexport.core.graph import LayerGraph, Program, Stage
from zoexport.ir.attentions import (
    Attention,
    OtherAttention,
    attention_of,
    scores_added,
    seen_before,
    softmaxes,
    table_values,
    tables_of,
    transposed,
    unrepeated,
    with_heads,
)
from zoexport.ir.graphs import aten, call, shape_of, zo
from zoexport.ir.rewrite import reshaped
from zoexport.ir.variants import vary

_Seen = tuple[bool, int]
"""Whether attention is causal, and its window."""


def fuse_attention(graph: LayerGraph) -> LayerGraph:
    """Rewrite every layer of a split graph whose rows are bound."""
    known: dict[tuple[str, ...], tuple[_Seen | None, ...]] = {}

    def seen(program: Program, stage: Stage) -> tuple[_Seen | None, ...]:
        key = (program.name, *tables_of(graph, stage))
        if key not in known:
            found = _attentions(graph, program)
            values = table_values(graph, program, stage) if found else None
            known[key] = tuple(values and _seen(graph, one, values) for one in found)
        return known[key]

    def replace(program: Program, wanted: tuple[_Seen | None, ...]) -> None:
        for attention, one in zip(_attentions(graph, program), wanted, strict=True):
            if attention is not None and one is not None:
                _replace(attention, graph.rows, *one)

    vary(graph, seen, replace)
    return graph


def _attentions(graph: LayerGraph, program: Program) -> list[Attention | None]:
    """Return the attentions of a program; None for an unsupported attention."""
    return [_known(graph, program, node) for node in softmaxes(program, graph.length)]


def _known(graph: LayerGraph, program: Program, softmax: Node) -> Attention | None:
    try:
        attention = attention_of(program, softmax)
    except OtherAttention:
        return None
    sizes = [shape_of(node) for node in (attention.queries, attention.keys, attention.values)]
    ranks = {len(size) for size in (*sizes, shape_of(attention.result))}
    heads, *others = (size[:-2] for size in sizes)
    # Keys of as many heads; or of one, which products repeat (Falcon).
    lead = {heads, *others} if len(heads) != 2 or {*others} != {(heads[0], 1)} else {heads}
    if attention.softcap or len(lead) != 1 or ranks not in ({3}, {4}):
        return None
    first = sizes[0][0]
    return attention if (first % graph.rows == 0 if ranks == {3} else first == graph.rows) else None


def _seen(
    graph: LayerGraph, attention: Attention | None, values: Callable[[Node], torch.Tensor]
) -> _Seen | None:
    """Return whether a stage's mask is causal, and its window; None if not supported."""
    if attention is None:
        return None
    try:
        bias, hides = scores_added(attention, values, graph.length)
    except OtherAttention:
        return None
    if bool(bias.masked_fill(hides, 0).any()):
        return None
    if not bool(hides.any()):
        return False, 0
    window = seen_before(hides)
    if window is None:
        return None
    return True, 0 if window >= graph.max_length else window


def _replace(attention: Attention, rows: int, causal: bool, window: int) -> None:
    result = attention.result
    nodes = result.graph
    with nodes.inserting_before(result):
        found = [
            with_heads(attention.queries, rows),
            with_heads(unrepeated(transposed(attention.keys)), rows),
            with_heads(unrepeated(attention.values), rows),
        ]
        q, k, v = (call(nodes, aten.transpose.int, node, 1, 2) for node in found)
        bias = _bias(attention, rows)
        made = call(nodes, zo.attention.default, q, k, v, bias, attention.scale, causal, window)
        out = call(nodes, operator.getitem, made, 0)
        turned = reshaped(call(nodes, aten.transpose.int, out, 1, 2), shape_of(result))
    result.replace_all_uses_with(turned)


def _bias(attention: Attention, rows: int) -> Node | None:
    """Return the sum of what is added to the scores of keys, (B, T)."""
    total: Node | None = None
    for node, factor in attention.key_biases:
        part = reshaped(node, [rows, math.prod(shape_of(node)) // rows])
        if factor != 1:
            part = call(node.graph, aten.mul.Tensor, part, factor)
        total = part if total is None else call(node.graph, aten.add.Tensor, total, part)
    return total
