"""Tables of rules: what each operator of a program is in another framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from zoexport.core.errors import LoweringError, first_line
from zoexport.core.graph import Program
from zoexport.ir.graphs import described

Rule = Callable[..., Any]

_STORAGE = ("layout", "device", "pin_memory", "memory_format", "non_blocking", "copy")
"""Where and how torch stores a tensor means nothing elsewhere."""
_UNFIT = (AttributeError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)


def packet_of(node: Node) -> Any:
    """Return the operator that a node calls, without its overload."""
    target: Any = node.target
    return getattr(target, "overloadpacket", target)


def apply_rule(
    program: Program,
    node: Node,
    rules: Mapping[Any, Rule],
    value_of: Callable[[Node], Any],
    framework: str,
) -> Any:
    """Return the result of the rule for a call of ``program``.

    Args:
        program: used in messages. node: the call.
        rules: by operator. value_of: returns the value of a node that the call reads.
        framework: name of the framework that the rules are for.

    Raises:
        LoweringError: an operator without a rule, or with arguments that its rule does not take.
    """
    packet = packet_of(node)
    if packet not in rules:
        expected = f"an operator that zoexport has a rule for in {framework}"
        raise _refused(program, node, f"the operator {node.target}", expected)
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value_of)
    meant = {key: value for key, value in kwargs.items() if key not in _STORAGE}
    try:
        return rules[packet](*args, **meant)
    except _UNFIT as error:
        expected = f"arguments that the rule of {packet} takes"
        raise _refused(program, node, first_line(error), expected) from error


def _refused(program: Program, node: Node, found: str, expected: str) -> LoweringError:
    return LoweringError(
        f"program {program.name}, {described(node)}",
        found=found,
        expected=expected,
        fix="Report the model's architecture, or compile for another target.",
    )
