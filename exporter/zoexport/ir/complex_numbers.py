"""complex_as_pairs: complex values as float tensors with a last dimension of 2 (real and imaginary part).

Before::

    r = aten.polar(ones, angles)
    y = aten.view_as_real(aten.mul(aten.view_as_complex(x), r))

After::

    r = aten.stack([aten.mul(ones, aten.cos(angles)), aten.mul(ones, aten.sin(angles))], -1)
    y = aten.cat([x0 * r0 - x1 * r1, x0 * r1 + x1 * r0], -1)      # x0 is x[..., 0:1]

Rotary embeddings of Llama 4 and DeepSeek V2 are complex numbers, which no target supports.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from zoexport.core.errors import VerifyError
from zoexport.core.graph import Program
from zoexport.ir.graphs import aten, call, described
from zoexport.ir.rewrite import rewrite

_SAME = (
    aten.view_as_complex,
    aten.view_as_real,
    aten.to,
    aten._to_copy,
    aten.alias,
    aten.clone,
    aten.contiguous,
    aten._assert_tensor_metadata,
)
"""Operators whose result is the pair that they read."""


def complex_as_pairs(program: Program) -> None:
    """Rewrite every call that reads or returns complex values.

    Raises:
        VerifyError: there is no rule for the operator.
    """
    found = {node for node in program.module.graph.nodes if _is_complex(node)}
    concerned = {
        node: [isinstance(arg, Node) and arg in found for arg in node.args]
        for node in program.module.graph.nodes
        if node in found or not found.isdisjoint(node.all_input_nodes)
    }

    def rule(node: Node) -> Node | None:
        return _pair(node, concerned[node]) if node in concerned else None

    rewrite(program, [((), rule)])


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def _pair(node: Node, pairs: list[bool]) -> Node:
    """Return the replacement of a call.

    Args:
        node: its complex arguments are pairs already. pairs: whether an argument is a pair.
    """
    graph, args = node.graph, node.args
    operator = getattr(node.target, "overloadpacket", node.target)
    read: Any = args[0] if args else None
    if operator in _SAME:
        return read
    if operator is aten.polar:
        parts = [call(graph, op.default, args[1]) for op in (aten.cos, aten.sin)]
        parts = [call(graph, aten.mul.Tensor, read, part) for part in parts]
        return call(graph, aten.stack.default, parts, -1)
    if operator is aten.mul and pairs == [True, True]:
        return _product(read, args[1])
    if operator is aten.mul and not isinstance(args[1], Node):
        return call(graph, aten.mul.Tensor, read, args[1])
    if operator is aten.unsqueeze:
        axis: Any = args[1]
        return call(graph, aten.unsqueeze.default, read, axis if axis >= 0 else axis - 1)
    raise VerifyError(
        f"[capture] {described(node)}",
        found="complex numbers",
        expected="complex numbers only in rotary embeddings",
        fix="Report the model's architecture.",
    )


def _product(one: Node, other: Any) -> Node:
    graph = one.graph
    (a, b), (c, d) = (
        [call(graph, aten.slice.Tensor, pair, -1, part, part + 1) for part in (0, 1)]
        for pair in (one, other)
    )

    def times(x: Node, y: Node) -> Node:
        return call(graph, aten.mul.Tensor, x, y)

    real = call(graph, aten.sub.Tensor, times(a, c), times(b, d))
    imaginary = call(graph, aten.add.Tensor, times(a, d), times(b, c))
    return call(graph, aten.cat.default, [real, imaginary], -1)
