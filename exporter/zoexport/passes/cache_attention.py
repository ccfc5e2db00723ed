"""cache_attention: layers read keys and values of the tokens before from a cache, and give those of their own tokens.

Before, for rows of any s tokens, with a constant mask::

    layer.0(hidden; mask) -> hidden
        s = aten.matmul(q, aten.transpose(repeat(k), 2, 3))       # repeat: once for each query head of a group
        p = aten.softmax(s * 0.25 + mask, -1)
        o = aten.matmul(p, repeat(v))

After, for s tokens that follow those in the cache::

    layer.0(hidden, cache.0, cache.1, position) -> hidden, cache.0, cache.1
        o = zoexport.cached_attention(q, k, v, cache.0, cache.1, position, None, 0.25, 0., 0)

The caches that a program gives are k and v of its own tokens: whoever calls it puts them into the caches that it takes.
A recurrence takes its state after the token before, and gives that after the last of ``count`` tokens; a causal
convolution keeps the rows that its taps reach::

    layer.1(hidden, cache.0, cache.1, position, count) -> hidden, cache.0, cache.1
        c = zoexport.cached_conv(x, taps, bias, cache.0, position)                                   # x is its cache.0
        o, cache.1 = zoexport.cached_recurrence(q, k, v, decay, None, beta, cache.1, position, count)

What a mask hides is found by its values: all tokens that follow, and of sliding windows those that lie further back. A
bias that grows with the distance (ALiBi) becomes a slope for each head. Stages whose masks differ get programs of their
own.

Refused: scores that are treated otherwise, masks that hide other tokens, and biases that depend on more than distance.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable

import torch
from torch.fx import Node

from zoexport.core.errors import VerifyError
from zoexport.core.graph import LayerGraph, Program, Stage, Value
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
from zoexport.ir.graphs import (
    add_input,
    arguments,
    aten,
    call,
    is_call,
    outputs,
    placeholders,
    set_outputs,
    shape_of,
    zo,
)
from zoexport.ir.variants import vary
from zoexport.passes.check_cached import check_cached

_CLOSE = 1e-4
"""Of a bias, for each token of distance: products of positions are rounded."""


def cache_attention(graph: LayerGraph, context: int) -> LayerGraph:
    """Rewrite every layer of a split graph for rows of one sequence.

    Args:
        context: tokens that caches hold; those of layers with a window hold no more than that.

    Raises:
        VerifyError: attention of a kind that is refused.
    """
    before = dataclasses.replace(
        graph,
        programs=dict(graph.programs),
        stages=[dataclasses.replace(stage) for stage in graph.stages],
        weights=dict(graph.weights),
    )

    known: dict[tuple[str, ...], tuple[_Seen, ...]] = {}

    def seen_by(program: Program, stage: Stage) -> tuple[_Seen, ...]:
        key = (program.name, *tables_of(graph, stage))
        if key not in known:
            found = _attentions(program, graph.length)
            try:
                values = table_values(graph, program, stage)
                known[key] = tuple(_seen(one, values, graph.length) for one in found)
            except OtherAttention as other:
                raise _refused(program, other) from other
        return known[key]

    def kinds(program: Program, stage: Stage) -> tuple[_Kind, ...]:
        seen = seen_by(program, stage)
        for number, one in enumerate(seen):
            if one.slopes is not None:
                name = f"slopes.{stage.name}.{number}"
                graph.weights[name] = one.slopes
                stage.bind = {**stage.bind, f"slopes.{number}": name}
        return tuple((one.window, one.slopes is not None) for one in seen)

    def replace(program: Program, wanted: tuple[_Kind, ...]) -> None:
        found = _attentions(program, graph.length)
        for place, (attention, kind) in enumerate(zip(found, wanted, strict=True)):
            _replace(program, attention, kind, place, context)
        _carry_states(program, 2 * len(found))

    vary(graph, kinds, replace)
    check_cached(before, graph)
    return graph


@dataclasses.dataclass(frozen=True)
class _Seen:
    """Window and ALiBi slopes of a mask, as in ``zoexport.cached_attention``."""

    window: int
    slopes: torch.Tensor | None


_Kind = tuple[int, bool]
"""A window, and whether there are slopes, whose values stages bind."""


def _attentions(program: Program, length: int) -> list[Attention]:
    try:
        return [attention_of(program, node) for node in softmaxes(program, length)]
    except OtherAttention as other:
        raise _refused(program, other) from other


def _refused(program: Program, other: OtherAttention) -> VerifyError:
    return VerifyError(
        f"[cache_attention] program {program.name}",
        found=other.found,
        expected=other.expected,
        fix="Report the model's architecture.",
    )


# --- what is seen ---------------------------------------------------------------------------------


def _seen(attention: Attention, value: Callable[[Node], torch.Tensor], length: int) -> _Seen:
    """Return the window and slopes of the mask that the constants of one stage define."""
    if attention.key_biases:
        raise OtherAttention("scores of keys that depend on tokens", "masks of places alone")
    bias, hides = scores_added(attention, value, length)
    window = seen_before(hides)
    if window is None:
        raise OtherAttention(
            "a mask with tokens that a query sees among those after it, or not the nearest before it",
            "causal masks, with or without a window",
        )
    return _Seen(window, _slopes(bias, hides, math.prod(shape_of(attention.result)[:-2])))


def _slopes(bias: torch.Tensor, hides: torch.Tensor, heads: int) -> torch.Tensor | None:
    """(H) what is added for each token that a key comes after the query; what is added to a whole row says nothing."""
    behind = torch.arange(hides.shape[-1])[:, None] - torch.arange(hides.shape[-1])[None]
    own = torch.diagonal(bias, dim1=1, dim2=2)[:, :, None]
    relative = torch.where(hides, torch.zeros(()), bias - own)
    if not bool(relative.any()):
        return None
    slopes = -relative[:, 1, 0]
    wrong = torch.where(hides, torch.zeros(()), relative + slopes[:, None, None] * behind).abs()
    if not bool((wrong <= _CLOSE * (1 + behind.abs())).all()):
        raise OtherAttention(
            "a bias that is no multiple of the distance of two tokens",
            "masks, and biases that grow with the distance",
        )
    return slopes.expand(heads).contiguous()


# --- rewriting ------------------------------------------------------------------------------------


def _replace(program: Program, attention: Attention, kind: _Kind, place: int, context: int) -> None:
    window, sloped = kind
    nodes = program.module.graph
    with nodes.inserting_before(attention.result):
        keys = transposed(attention.keys)
        q = with_heads(attention.queries, 1)
        k = with_heads(unrepeated(keys), 1)
        v = with_heads(unrepeated(attention.values), 1)
    heads, groups = shape_of(q)[1], shape_of(k)[1]
    if heads % groups or shape_of(v)[1] != groups:
        other = OtherAttention(
            f"{heads} query heads over {groups} key heads",
            "query heads in equal groups over key heads",
        )
        raise _refused(program, other)
    rows = context if window == 0 else min(window, context)
    taken = []
    named = []
    for number, node in ((2 * place, k), (2 * place + 1, v)):
        shape = (groups, rows, shape_of(node)[-1])
        value = Value(f"cache.{number}", "cache", "float32", shape)
        taken.append(add_input(program, value))
        named.append((Value(value.name, "cache_rows", "float32", shape_of(node)), node))
    position = _scalar(program, "position")
    slopes = None
    if sloped:
        slopes = add_input(program, Value(f"slopes.{place}", "weight", "float32", (heads,)))
    with nodes.inserting_before(attention.result):
        made = call(
            nodes,
            zo.cached_attention.default,
            *(q, k, v, *taken, position, slopes),
            *(attention.scale, attention.softcap, window),
        )
        if shape_of(made) != shape_of(attention.result):
            made = call(nodes, aten.reshape.default, made, list(shape_of(attention.result)))
    attention.result.replace_all_uses_with(made)
    values = [*zip(program.outputs, outputs(program).values(), strict=True), *named]
    set_outputs(program, values)


def _scalar(program: Program, role: str) -> Node:
    """Return the input of a number that a session sets at each call."""
    found = placeholders(program).get(role)
    return found or add_input(program, Value(role, role, "int64", (1,)))


def _carry_states(program: Program, number: int) -> None:
    """Let recurrences and convolutions go on from the tokens before.

    Args:
        number: of the first cache.
    """
    nodes = program.module.graph
    named = []
    for node in list(nodes.nodes):
        if not is_call(node, zo.causal_conv, zo.linear_recurrence):
            continue
        given, name = arguments(node), f"cache.{number}"
        number += 1
        position = _scalar(program, "position")
        if is_call(node, zo.causal_conv):
            x, weight, bias, _ = given
            width, rows = shape_of(x)[-1], max(1, shape_of(weight)[1] - 1)
            before = add_input(program, Value(name, "cache", "float32", (1, rows, width)))
            with nodes.inserting_before(node):
                made = call(nodes, zo.cached_conv.default, x, weight, bias, before, position)
                kept = call(nodes, aten.unsqueeze.default, x, 1)
        else:
            size = shape_of(given[0])[-1] * shape_of(given[2])[-1]
            shape = (shape_of(given[2])[2], 1, size)
            state = add_input(program, Value(name, "cache", "float32", shape))
            count = _scalar(program, "count")
            with nodes.inserting_before(node):
                both = call(nodes, zo.cached_recurrence.default, *given, state, position, count)
                made = call(nodes, operator.getitem, both, 0)
                kept = call(nodes, operator.getitem, both, 1)
        node.replace_all_uses_with(made)
        nodes.erase_node(node)
        named.append((Value(name, "cache_rows", "float32", shape_of(kept)), kept))
    values = [*zip(program.outputs, outputs(program).values(), strict=True), *named]
    set_outputs(program, values)
