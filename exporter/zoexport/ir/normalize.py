"""normalize: rare operators in terms of those that every target has a rule for.

Before::

    h = aten.hardswish(x)

After::

    a = aten.add(x, 3)
    b = aten.clamp(a, 0, 6)
    c = aten.mul(x, b)
    h = aten.div(c, 6)

A program is normalized when it is captured, and when it was made from another one's gradients, so that no target needs
a rule for any of these.

Left alone: operators that targets state better themselves, as gelu, silu and softplus.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from zoexport.core.graph import Program
from zoexport.ir.graphs import aten, call
from zoexport.ir.rewrite import rewrite

_Rule = Callable[..., Node | None]
_TO_THE_END = (1 << 63) - 1


def normalize(program: Program) -> None:
    """Rewrite every call of an operator in :data:`RARE`, and fill memory that is not filled."""
    for node in program.module.graph.nodes:
        if node.target in _FILLED:
            # A partial write may multiply the rest by 0, and 0 * NaN is NaN.
            node.target = _FILLED[node.target]
            if node.target is aten.zeros.default:
                node.kwargs = {k: v for k, v in node.kwargs.items() if k != "memory_format"}
    rewrite(program, [((), _normal)])


_FILLED = {
    aten.empty.memory_format: aten.zeros.default,
    aten.empty_like.default: aten.zeros_like.default,
    aten.new_empty.default: aten.new_zeros.default,
}


def _normal(node: Node) -> Node | None:
    rule = RARE.get(node.target) or RARE.get(getattr(node.target, "overloadpacket", None))
    return None if rule is None else rule(node.graph, *node.args, **node.kwargs)


def _clip(graph: Graph, x: Node, low: Any = None, high: Any = None, **named: Any) -> Node:
    low, high = named.get("min", low), named.get("max", high)
    tensors = isinstance(low, Node) or isinstance(high, Node)
    return call(graph, aten.clamp.Tensor if tensors else aten.clamp.default, x, low, high)


def _hardtanh(graph: Graph, x: Node, low: float = -1.0, high: float = 1.0) -> Node:
    return call(graph, aten.clamp.default, x, low, high)


def _hardsigmoid(graph: Graph, x: Node) -> Node:
    moved = call(graph, aten.add.Tensor, x, 3)
    return call(graph, aten.div.Tensor, call(graph, aten.clamp.default, moved, 0, 6), 6)


def _hardswish(graph: Graph, x: Node) -> Node:
    moved = call(graph, aten.add.Tensor, x, 3)
    scaled = call(graph, aten.mul.Tensor, x, call(graph, aten.clamp.default, moved, 0, 6))
    return call(graph, aten.div.Tensor, scaled, 6)


def _leaky_relu(graph: Graph, x: Node, slope: float = 0.01) -> Node:
    positive = call(graph, aten.gt.Scalar, x, 0)
    return call(graph, aten.where.self, positive, x, call(graph, aten.mul.Tensor, x, slope))


def _prelu(graph: Graph, x: Node, slope: Node) -> Node:
    channels, dims = slope.meta["val"].numel(), x.meta["val"].dim()
    if channels > 1 and dims > 2:  # the slopes are of dimension 1
        slope = call(graph, aten.reshape.default, slope, [channels, *[1] * (dims - 2)])
    positive = call(graph, aten.gt.Scalar, x, 0)
    return call(graph, aten.where.self, positive, x, call(graph, aten.mul.Tensor, x, slope))


def _mish(graph: Graph, x: Node) -> Node:
    softplus = call(graph, aten.softplus.default, x)
    return call(graph, aten.mul.Tensor, x, call(graph, aten.tanh.default, softplus))


def _pad(graph: Graph, x: Node, pads: list[int], *fill: Any, **named: Any) -> Node | None:
    """Cut what a negative padding takes away, which ExecuTorch's operator does not; (before, after) by last axis."""
    modes = [one for one in (*fill, *named.values()) if isinstance(one, str)]
    if min(pads) >= 0 or modes not in ([], ["constant"]):
        return None
    made = x
    for place in range(0, len(pads), 2):
        start, end = max(-pads[place], 0), min(pads[place + 1], 0) or _TO_THE_END
        if (start, end) != (0, _TO_THE_END):
            axis = x.meta["val"].dim() - 1 - place // 2
            made = call(graph, aten.slice.Tensor, made, axis, start, end)
    value = next((one for one in (*fill, *named.values()) if isinstance(one, int | float)), 0)
    kept = [max(count, 0) for count in pads]
    return call(graph, aten.constant_pad_nd.default, made, kept, value) if any(kept) else made


def _copy(graph: Graph, x: Node, source: Node, *_: bool) -> Node:
    """Give ``source`` in the dtype and shape of ``x``, whose values are not read."""
    old, new = source.meta["val"], x.meta["val"]
    made = source if old.dtype == new.dtype else call(graph, aten.to.dtype, source, new.dtype)
    same = len(old.shape) == len(new.shape) and all(
        map(statically_known_true, map(operator.eq, old.shape, new.shape))
    )
    return made if same else call(graph, aten.expand_as.default, made, x)


def _vector_norm(
    graph: Graph, x: Node, order: float = 2, dim: Any = None, keepdim: bool = False, **named: Any
) -> Node | None:
    """Write the Euclidean norm of some dimensions as the root of a sum, whose gradient at 0 is 0."""
    if order != 2 or dim is None or named.get("dtype") is not None:
        return None
    squares = call(graph, aten.mul.Tensor, x, x)
    total = call(graph, aten.sum.dim_IntList, squares, dim, keepdim)
    tiny = torch.finfo(torch.float32).tiny
    return call(graph, aten.sqrt.default, call(graph, aten.clamp.default, total, tiny))


def _index_put(graph: Graph, x: Node, indices: Any, values: Node, *added: bool) -> Node | None:
    """One value for the places of a mask."""
    (mask, *others) = indices
    if others or any(added) or mask is None or values.meta["val"].numel() != 1:
        return None
    if mask.meta["val"].dtype != torch.bool or mask.meta["val"].shape != x.meta["val"].shape:
        return None
    return call(graph, aten.masked_fill.Tensor, x, mask, values)


RARE: dict[Any, _Rule] = {
    aten.clip: _clip,
    aten.constant_pad_nd: _pad,
    aten.copy: _copy,
    aten.hardsigmoid: _hardsigmoid,
    aten.hardswish: _hardswish,
    aten.hardtanh: _hardtanh,
    aten.index_put: _index_put,
    aten.leaky_relu: _leaky_relu,
    aten.linalg_vector_norm: _vector_norm,
    aten.max.other: lambda graph, a, b: call(graph, aten.maximum.default, a, b),
    aten.min.other: lambda graph, a, b: call(graph, aten.minimum.default, a, b),
    aten.mish: _mish,
    aten.pad: _pad,
    aten.prelu: _prelu,
    aten.relu6: lambda graph, x: _hardtanh(graph, x, 0, 6),
    aten.square: lambda graph, x: call(graph, aten.pow.Tensor_Scalar, x, 2),
}
"""An operator, or its packet -> what writes it otherwise: graph and the call's arguments -> the node in its place."""
