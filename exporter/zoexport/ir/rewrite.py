"""Loop that applies rewrite rules to a program's calls, and helpers that rules share.

A rule takes a call and returns its replacement::

    def softplus(node):                          # y = softplus(x)  ->  y = log(1 + exp(x))
        return call(node.graph, aten.log1p.default, call(node.graph, aten.exp.default, operand(node)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.fx import Node

from zoexport.core.graph import Program
from zoexport.ir.graphs import aten, call, is_call, keep_path, shape_of

Replaced = Node | tuple[Node, ...] | None
"""What stands for a call: a node, one for each of its results, or None where it stays."""
Rule = Callable[[Node], Replaced]
Rules = Iterable[tuple[tuple[Any, ...], Rule]]
"""Operators (OpOverload or packet), and the rule for their calls; no operators: for every call."""


def rewrite(program: Program, rules: Rules) -> None:
    """Apply rules one after the other, each to the calls that there are when its turn comes.

    The insertion point is before the call, and what is made there belongs to the call's module. Calls that are replaced
    go; what nothing reads any more stays (``remove_unused_weights``).
    """
    graph = program.module.graph
    for operators, rule in rules:
        for node in list(graph.nodes):
            if node.op != "call_function" or (operators and not is_call(node, *operators)):
                continue
            before = node.prev
            with graph.inserting_before(node):
                made = rule(node)
            if made is None:
                continue
            part = node.prev
            while part is not before:
                keep_path(part, node)
                part = part.prev
            if isinstance(made, tuple):
                for one in list(node.users):
                    index: Any = one.args[1]
                    one.replace_all_uses_with(made[index])
                    graph.erase_node(one)
            else:
                node.replace_all_uses_with(made)
            graph.erase_node(node)


def reshaped(source: Node, shape: Iterable[int]) -> Node:
    """``source`` in another shape, by a call at its graph's insertion point where that differs from its own."""
    wanted = tuple(shape)
    if shape_of(source) == wanted:
        return source
    return call(source.graph, aten.reshape.default, source, list(wanted))
