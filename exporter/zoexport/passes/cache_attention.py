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
What a mask hides is found by its values: all tokens that follow, and of sliding windows those that lie further back. A
bias that grows with the distance (ALiBi) becomes a slope for each head. Stages whose masks differ get programs of their
own.

Refused: scores that are treated otherwise, masks that hide other tokens, and biases that depend on more than distance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from zoexport.core.errors import VerifyError
from zoexport.core.types import Program, Stage, TrainingGraph, Value
from zoexport.ir.graphs import (
    RESHAPES,
    add_input,
    arguments,
    aten,
    call,
    constant_values,
    copy_program,
    is_call,
    operand,
    outputs,
    placeholders,
    remove_unused_weights,
    set_outputs,
    shape_of,
    zo,
)
from zoexport.passes.check_cached import check_cached

_ALONE = (*RESHAPES, aten.to, aten._to_copy, aten.clone, aten.contiguous)
_PRODUCTS = (aten.matmul, aten.bmm)
_HIDDEN = -1e4
"""No score that is hidden may be above it."""
_CLOSE = 1e-4
"""Of a bias, for each token of distance: products of positions are rounded."""


def cache_attention(graph: TrainingGraph, context: int) -> TrainingGraph:
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
    programs: dict[str, Program] = {}
    for family, program in graph.programs.items():
        found = _attentions(program, graph.length)
        variants: dict[tuple[_Kind, ...], list[Stage]] = {}
        for stage in graph.stages_of(program):
            values = _tables(graph, program, stage)
            seen = tuple(_seen(one, values, graph.length) for one in found)
            kinds = tuple((one.window, one.slopes is not None) for one in seen)
            variants.setdefault(kinds, []).append(stage)
            for number, one in enumerate(seen):
                if one.slopes is not None:
                    name = f"slopes.{stage.name}.{number}"
                    graph.weights[name] = one.slopes
                    stage.bind = {**stage.bind, f"slopes.{number}": name}
        for number, (kinds, stages) in enumerate(variants.items()):
            made = copy_program(program, family if len(variants) == 1 else f"{family}.{number}")
            made.family = made.name
            for place, (attention, kind) in enumerate(
                zip(_attentions(made, graph.length), kinds, strict=True)
            ):
                _replace(made, attention, kind, place, context)
            remove_unused_weights(made)
            made.module.recompile()
            programs[made.name] = made
            read = {value.name for value in made.inputs}
            for stage in stages:
                stage.forward = made.family
                stage.bind = {name: to for name, to in stage.bind.items() if name in read}
    graph.programs = programs
    check_cached(before, graph)
    return graph


@dataclasses.dataclass(frozen=True)
class _Seen:
    """What a mask lets a query see, as ``zoexport.cached_attention`` takes it."""

    window: int
    slopes: torch.Tensor | None


_Kind = tuple[int, bool]
"""A window, and whether there are slopes, whose values stages bind."""


@dataclasses.dataclass
class _Attention:
    """One attention of a program.

    Attributes:
        queries, keys, values: operands of its products, (..., s, d), (..., d, s) and (..., s, e).
        result: the product with the values.
        scale, softcap: of the scores.
        biases: constants that are added to scores, with a factor.
        hidden: (mask, truth value that hides, shape of the scores): what fills scores with a large negative number.
    """

    queries: Node
    keys: Node
    values: Node
    result: Node
    scale: float
    softcap: float
    biases: list[tuple[Node, float]]
    hidden: list[tuple[Node, bool]]


def _attentions(program: Program, length: int) -> list[_Attention]:
    return [
        _attention(program, node)
        for node in program.module.graph.nodes
        if is_call(node, aten.softmax, aten._softmax)
        and shape_of(node)[-2:] == (length, length)
        and arguments(node)[1] in (-1, len(shape_of(node)) - 1)
    ]


def _refused(program: Program, node: Node, expected: str) -> VerifyError:
    return VerifyError(
        f"[cache_attention] program {program.name}",
        found=node.format_node() or node.name,
        expected=expected,
        fix="Compile with --set generate=off; report the model's architecture.",
    )


def _attention(program: Program, softmax: Node) -> _Attention:
    """The computation that ends in ``softmax``, followed back to its product, and then to the one that reads it."""
    constants = _constant_nodes(program)
    factor, softcap = 1.0, 0.0
    biases: list[tuple[Node, float]] = []
    hidden: list[tuple[Node, bool]] = []
    node = operand(softmax)
    while not is_call(node, *_PRODUCTS, aten.baddbmm):
        given = arguments(node)
        if is_call(node, *_ALONE):
            node = operand(node)
        elif is_call(node, aten.mul, aten.div) and isinstance(given[1], int | float):
            factor = factor * given[1] if is_call(node, aten.mul) else factor / given[1]
            node = operand(node)
        elif is_call(node, aten.tanh) and not softcap:
            factor, softcap = 1.0, factor
            node = operand(node)
        elif softcap:
            raise _refused(program, node, "scores that are masked after they are capped")
        elif is_call(node, aten.add) and not node.kwargs and len(constants & {*given}) == 1:
            (bias,) = constants & {*given}
            biases.append((bias, factor))
            (node,) = (arg for arg in given if arg is not bias)
        elif is_call(node, aten.masked_fill) and given[1] in constants and _is_low(given[2]):
            hidden.append((given[1], True))
            node = operand(node)
        elif is_call(node, aten.where) and given[0] in constants and _is_low(given[2]):
            hidden.append((given[0], False))
            node = operand(node, 1)
        else:
            raise _refused(program, node, "scores that are scaled, capped and masked")
    given = arguments(node)
    if is_call(node, aten.baddbmm):
        named: Mapping[str, Any] = node.kwargs
        alpha, beta = named.get("alpha", 1), named.get("beta", 1)
        if beta and (softcap or given[0] not in constants):
            raise _refused(program, node, "a constant that is added to scores")
        biases += [(given[0], factor * float(beta))] if beta else []
        factor *= float(alpha)
        given = given[1:]
    result = _reader(program, softmax)
    scale = factor * softcap if softcap else factor
    return _Attention(
        given[0], given[1], operand(result, 1), result, scale, softcap, biases, hidden
    )


def _reader(program: Program, softmax: Node) -> Node:
    """The product of probabilities and values."""
    node = softmax
    while len(node.users) == 1:
        (reader,) = node.users
        if is_call(reader, *_PRODUCTS) and operand(reader) is node:
            return reader
        if not is_call(reader, *_ALONE):
            break
        node = reader
    raise _refused(program, node, "probabilities that are multiplied by values and by nothing else")


def _is_low(value: Any) -> bool:
    """Whether a number, or a constant without dimensions, hides the score that it stands for."""
    if is_call(value, aten.scalar_tensor, aten.full):
        value = arguments(value)[1 if is_call(value, aten.full) else 0]
    return isinstance(value, int | float) and value <= _HIDDEN


def _constant_nodes(program: Program) -> set[Node]:
    """What neither tokens nor the model's own weights decide: tables, and calls on them alone."""
    found: set[Node] = set()
    values = zip(program.inputs, placeholders(program).values(), strict=True)
    found |= {node for value, node in values if value.role == "weight"}
    for node in program.module.graph.nodes:
        if node.op == "call_function" and found.issuperset(node.all_input_nodes):
            found.add(node)
    return found


# --- what is seen ---------------------------------------------------------------------------------


def _tables(graph: TrainingGraph, program: Program, stage: Stage) -> Callable[[Node], Any]:
    """The values of constants of a stage's program: of its tables, and of what is computed from these."""
    tables = {
        local: graph.weights[name]
        for local, name in stage.bind.items()
        if name in graph.weights and name not in graph.parameters
    }
    values = constant_values(program, tables, lambda node: False)

    def value(node: Node) -> Any:
        if node not in values:
            raise _refused(program, node, "masks and biases that do not depend on weights")
        return values[node]

    return value


def _seen(attention: _Attention, value: Callable[[Node], Any], length: int) -> _Seen:
    """What the constants of one stage let a query see."""
    heads = math.prod(shape_of(attention.result)[:-2])
    bias = torch.zeros(1, length, length)
    for node, factor in attention.biases:
        bias = bias + factor * _by_head(value(node).float(), heads, length)
    hides = bias <= _HIDDEN
    for node, truth in attention.hidden:
        hides = hides | (_by_head(value(node).bool(), heads, length) == truth)
    behind = torch.arange(length)[:, None] - torch.arange(length)[None]
    # The first column of the last row is furthest back.
    window = int((~hides[0, -1]).sum())
    expected = (behind < 0) | (behind >= window)
    if not bool((hides == expected).all()):
        raise VerifyError(
            "[cache_attention] a mask",
            found="tokens that a query sees among those after it, or not the nearest before it",
            expected="causal masks, with or without a window",
            fix="Compile with --set generate=off; report the model's architecture.",
        )
    slopes = _slopes(bias, hides, behind, heads)
    return _Seen(0 if window == length else window, slopes)


def _by_head(value: torch.Tensor, heads: int, length: int) -> torch.Tensor:
    """A constant that is added to scores, as (heads or 1, s, s)."""
    value = value.reshape([1] * (3 - value.dim()) + list(value.shape))
    lead = math.prod(value.shape[:-2])
    flat = value.reshape(lead, *value.shape[-2:])
    return flat.expand(heads if lead > 1 else 1, length, length)


def _slopes(
    bias: torch.Tensor, hides: torch.Tensor, behind: torch.Tensor, heads: int
) -> torch.Tensor | None:
    """(H) what is added for each token that a key comes after the query; what is added to a whole row says nothing."""
    own = torch.diagonal(bias, dim1=1, dim2=2)[:, :, None]
    relative = torch.where(hides, torch.zeros(()), bias - own)
    if not bool(relative.any()):
        return None
    slopes = -relative[:, 1, 0]
    wrong = torch.where(hides, torch.zeros(()), relative + slopes[:, None, None] * behind).abs()
    if not bool((wrong <= _CLOSE * (1 + behind.abs())).all()):
        raise VerifyError(
            "[cache_attention] a bias",
            found="what is no multiple of the distance of two tokens",
            expected="masks, and biases that grow with the distance",
            fix="Compile with --set generate=off; report the model's architecture.",
        )
    return slopes.expand(heads).contiguous()


# --- rewriting ------------------------------------------------------------------------------------


def _replace(
    program: Program, attention: _Attention, kind: _Kind, place: int, context: int
) -> None:
    window, sloped = kind
    nodes = program.module.graph
    with nodes.inserting_before(attention.result):
        keys = _transposed(attention.keys)
        q = _with_heads(attention.queries)
        k = _with_heads(_unrepeated(keys))
        v = _with_heads(_unrepeated(attention.values))
    heads, groups = shape_of(q)[1], shape_of(k)[1]
    if heads % groups or shape_of(v)[1] != groups:
        raise _refused(program, attention.result, "query heads in equal groups over key heads")
    rows = context if window == 0 else min(window, context)
    taken = []
    named = []
    for number, node in ((2 * place, k), (2 * place + 1, v)):
        shape = (groups, rows, shape_of(node)[-1])
        value = Value(f"cache.{number}", "cache", "float32", shape)
        taken.append(add_input(program, value))
        named.append((Value(value.name, "cache_rows", "float32", shape_of(node)), node))
    position = placeholders(program).get("position")
    if position is None:
        position = add_input(program, Value("position", "position", "int64", (1,)))
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


def _transposed(node: Node) -> Node:
    """(..., s, d) of what is (..., d, s): what was transposed, where it was."""
    rank = len(shape_of(node))
    if is_call(node, aten.transpose) and {axis % rank for axis in arguments(node)[1:3]} == {
        rank - 2,
        rank - 1,
    }:
        return operand(node)
    return call(node.graph, aten.transpose.int, node, -2, -1)


def _unrepeated(node: Node) -> Node:
    """What ``node`` (..., h, s, d) repeats for each head of a group, (..., n, s, d); else itself."""
    if not is_call(node, *RESHAPES):
        return node
    expand = operand(node)
    while is_call(expand, aten.clone, aten.contiguous):
        expand = operand(expand)
    if not is_call(expand, aten.expand):
        return node
    single = operand(expand)
    before, after = shape_of(single), shape_of(expand)
    grouped = len(before) == 5 and before[2] == 1 and before[:2] == after[:2]
    if not (grouped and before[3:] == after[3:] == shape_of(node)[-2:] and after[0] == 1):
        return node
    if is_call(single, aten.unsqueeze) and len(shape_of(operand(single))) == 4:
        return operand(single)
    return call(node.graph, aten.reshape.default, single, [*before[:2], *before[3:]])


def _with_heads(node: Node) -> Node:
    """(1, h, s, d) of one sequence's (h, s, d) or (1, h, s, d)."""
    shape = shape_of(node)
    if len(shape) == 4 and shape[0] == 1:
        return node
    flat = [1, math.prod(shape[:-2]), *shape[-2:]]
    return call(node.graph, aten.reshape.default, node, flat)
