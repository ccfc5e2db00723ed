"""write_cached_attention: attention over a cache in torch's operators, if there is no kernel.

Before, for T tokens of H heads over N groups and caches of R rows::

    o = zoexport.cached_attention(q, k, v, keys, values, position, slopes, scale, softcap, window)

After, with g = H / N::

    q'   = aten.reshape(q * scale, [N, g*T, D])
    s    = aten.cat([aten.bmm(q', keysT), aten.bmm(q', kT)], -1)         # (N, g*T, R + T)
    s    = softcap * aten.tanh(s / softcap)
    back = (position + R - 1 - [0 .. R-1]) % R + 1                       # how far a row's token is before the first one
    bias = -1e30 * hidden(back, position, window) + slopes * distance    # (T, R + T) or (H, T, R + T)
    p    = aten.softmax(aten.reshape(s, [H, T, R + T]) + bias, -1)
    o    = aten.bmm(p[.., :R], values) + aten.bmm(p[.., R:], v)

Every row of a cache takes part, so that sizes are fixed: those that nothing was put into, or that lie beyond the
window, are hidden. What a row holds must be a number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from zoexport.core.graph import Program
from zoexport.ir.graphs import arguments, aten, call, record, shape_of, zo
from zoexport.ir.rewrite import reshaped, rewrite

_HIDDEN = -1e30
"""Added to a score, it leaves a probability of 0."""


def write_cached_attention(program: Program) -> None:
    """Rewrite every such call of a program whose sizes are numbers."""
    rewrite(program, [((zo.cached_attention,), _written)])


def _written(node: Node) -> Node:
    q, k, v, keys, values, position, slopes, scale, softcap, window = arguments(node)
    _, heads, tokens, width = shape_of(q)
    groups, rows, _ = shape_of(keys)
    queries = reshaped(_call(aten.mul.Tensor, q, scale), [groups, heads // groups * tokens, width])
    own = reshaped(k, shape_of(k)[1:])
    scores = _call(
        aten.cat.default,
        [
            _call(aten.bmm.default, queries, _call(aten.transpose.int, one, 1, 2))
            for one in (keys, own)
        ],
        -1,
    )
    if softcap:
        capped = _call(aten.tanh.default, _call(aten.div.Tensor, scores, softcap))
        scores = _call(aten.mul.Tensor, capped, softcap)
    bias = _bias(position, slopes, tokens, rows, window)
    every = reshaped(scores, [heads, tokens, rows + tokens])
    every = _call(aten.softmax.int, _call(aten.add.Tensor, every, bias), -1)
    every = reshaped(every, shape_of(scores))
    before = _call(aten.bmm.default, _call(aten.slice.Tensor, every, 2, 0, rows), values)
    after = _call(aten.slice.Tensor, every, 2, rows, rows + tokens)
    after = _call(aten.bmm.default, after, reshaped(v, shape_of(v)[1:]))
    return reshaped(_call(aten.add.Tensor, before, after), shape_of(node))


def _bias(position: Node, slopes: Node | None, tokens: int, rows: int, window: int) -> Node:
    """What is added to the scores of the rows of a cache and then of the tokens at hand."""
    token = reshaped(_counted(position, tokens), [tokens, 1])
    # A row of a cache holds the last of the tokens before that were put there.
    back = _call(aten.add.Tensor, position, rows - 1)
    back = _call(aten.sub.Tensor, back, _counted(position, rows))
    back = _call(aten.add.Tensor, _call(aten.remainder.Scalar, back, rows), 1)
    nothing = _number(_call(aten.gt.Tensor, back, position))
    before = _call(aten.add.Tensor, reshaped(back, [1, rows]), token)
    after = _call(aten.sub.Tensor, token, reshaped(token, [1, tokens]))
    distance = _call(aten.cat.default, [before, after], 1)
    hidden = _call(
        aten.cat.default,
        [
            _call(aten.expand.default, reshaped(nothing, [1, rows]), [tokens, rows]),
            _number(_call(aten.lt.Scalar, after, 0)),
        ],
        1,
    )
    if window:
        beyond = _number(_call(aten.ge.Scalar, distance, window))
        hidden = _call(aten.maximum.default, hidden, beyond)
    bias = _call(aten.mul.Tensor, hidden, _HIDDEN)
    if slopes is None:
        return bias
    slope = reshaped(slopes, [shape_of(slopes)[0], 1, 1])
    ahead = _call(aten.neg.default, _number(distance))
    return _call(aten.add.Tensor, bias, _call(aten.mul.Tensor, slope, ahead))


def _counted(position: Node, count: int) -> Node:
    """0 to ``count`` - 1."""
    made = record(position.graph, position, aten.arange.default, count)
    made.meta["val"] = position.meta["val"].new_empty((count,))
    return made


def _number(value: Node) -> Node:
    return _call(aten.to.dtype, value, torch.float32)


def _call(operator: Any, *args: Any) -> Node:
    """A call at the insertion point of its first operand's graph."""
    first = args[0][0] if isinstance(args[0], list) else args[0]
    return call(first.graph, operator, *args)
