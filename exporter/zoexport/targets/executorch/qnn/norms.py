"""rms_norms: root mean square norms as the one operator that the HTP has for them.

Before::

    n = x * aten.rsqrt(aten.mean(aten.pow(x, 2), [-1], True) + eps)      # or pow(..., -0.5)
    y = w * n                                                            # w (d), a weight

After::

    y = aten.reshape(aten.rms_norm(aten.reshape(x, [-1, d]), [d], w, eps), x.shape)

The operator divides before it squares: the squares of small activations alone would leave the range of fp16. It reads
rows of two dimensions: of three, 9 or 11 in the first, the HTP's operator (QNN 2.51) gives wrong numbers for some of
the rows, of any width, and overwrites other tensors. Left alone: rows of fewer than 64 elements,
for which its results are wrong too.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from zoexport.core.graph import Program, TrainingGraph
from zoexport.ir.graphs import (
    arguments,
    aten,
    call,
    is_call,
    operand,
    placeholders,
    shape_of,
    weight_input,
)

LEAST_WIDTH = 64


def rms_norms(graph: TrainingGraph, program: Program) -> None:
    """Rewrite the norms of a program; constants that they need become weights of ``graph``."""
    for node in list(program.module.graph.nodes):
        found = _normalized(node)
        if found is not None and shape_of(node)[-1] >= LEAST_WIDTH:
            _rewrite(graph, program, node, *found)
    program.module.graph.eliminate_dead_code()


def _normalized(node: Node) -> tuple[Node, float] | None:
    """x and eps, where ``node`` is x times the reciprocal root of its mean square."""
    if not is_call(node, aten.mul) or not all(isinstance(arg, Node) for arg in node.args):
        return None
    for x, root in (arguments(node), arguments(node)[::-1]):
        power = is_call(root, aten.pow) and root.args[1] == -0.5
        if not (power or is_call(root, aten.rsqrt)):
            continue
        shifted = operand(root)
        if not is_call(shifted, aten.add) or not isinstance(shifted.args[1], float):
            continue
        mean = operand(shifted)
        if not is_call(mean, aten.mean) or arguments(mean)[1:] not in (
            ([-1], True),
            ([len(shape_of(x)) - 1], True),
        ):
            continue
        if _is_square(operand(mean), x):
            return x, shifted.args[1]
    return None


def _is_square(node: Node, x: Node) -> bool:
    if is_call(node, aten.pow):
        return node.args[0] is x and node.args[1] in (2, 2.0)
    return is_call(node, aten.mul) and node.args == (x, x)


def _rewrite(graph: TrainingGraph, program: Program, norm: Node, x: Node, eps: float) -> None:
    nodes = program.module.graph
    width = shape_of(norm)[-1]
    (reader, *others) = norm.users
    weight = None if others else _weight_of(program, reader, norm, width)
    result = norm
    if weight is not None:
        result = reader
    else:
        name = f"ones.{width}"
        weight = weight_input(program, name, graph.weights.setdefault(name, torch.ones(width)))
    with nodes.inserting_before(result):
        rows = call(nodes, aten.reshape.default, x, [-1, width])
        normal = call(nodes, aten.rms_norm.default, rows, [width], weight, eps)
        replacement = call(nodes, aten.reshape.default, normal, list(shape_of(result)))
    result.replace_all_uses_with(replacement)


def _weight_of(program: Program, reader: Node, norm: Node, width: int) -> Node | None:
    """Return the weight that the only reader of a norm multiplies it with."""
    if not is_call(reader, aten.mul):
        return None
    known = set(placeholders(program).values())
    factors = [arg for arg in reader.all_input_nodes if arg is not norm]
    if len(factors) != 1 or factors[0] not in known or shape_of(factors[0]) != (width,):
        return None
    return factors[0]
