"""group_queries: attention over shared key-value heads without copying them.

Before, for g query heads on each of n key-value heads::

    k' = aten.reshape(aten.expand(aten.unsqueeze(k, 2), [b, n, g, s, d]), [b, n*g, s, d])
    a  = aten.matmul(q, aten.transpose(k', 2, 3))              # q (b, n*g, t, d)

After, since query heads of one group stand side by side::

    q' = aten.reshape(q, [b, n, g*t, d])
    a  = aten.reshape(aten.matmul(q', aten.transpose(k, 2, 3)), [b, n*g, t, s])

and the same for the product with the values; where ``bind_rows`` repeats k for the copies, k itself is repeated,
not its g-fold copy. Left alone: an ``expand`` that is read by anything but such a
product, and models in which every query head has its own key-value head.
"""

from __future__ import annotations

from torch.fx import Node

from zoexport.core.graph import TrainingGraph
from zoexport.ir.graphs import arguments, aten, call, is_call, operand, shape_of
from zoexport.ir.rewrite import rewrite


def group_queries(graph: TrainingGraph) -> TrainingGraph:
    """Apply the rewrite to every program."""
    for program in graph.programs.values():
        rewrite(program, [((aten.matmul,), _grouped)])
        program.module.graph.eliminate_dead_code()
    return graph


def _grouped(product: Node) -> Node | None:
    if len(shape_of(product)) != 4:
        return None
    left = operand(product)
    times, right = _unrepeated(operand(product, 1))
    transposed = is_call(right, aten.transpose) and {
        dim % 4 for dim in right.args[1:] if isinstance(dim, int)
    } == {2, 3}
    again, heads_of = _unrepeated(operand(right) if transposed else right)
    shared = _shared_heads(heads_of)
    if shared is None:
        return None
    nodes = product.graph
    batch, heads, length, width = shape_of(left)
    groups = shape_of(shared)[1]
    if times * again > 1:
        shared = call(nodes, aten.repeat.default, shared, [times * again, 1, 1, 1])
    ahead = [batch, groups]
    if groups == 1:
        # The emulator of the NPU reshapes a product of shape (b, 1, g*t, s) incorrectly.
        ahead = [batch]
        shared = call(nodes, aten.reshape.default, shared, [batch, *shape_of(shared)[2:]])
    stacked = call(nodes, aten.reshape.default, left, [*ahead, heads // groups * length, width])
    if transposed:
        shared = call(nodes, aten.transpose.int, shared, -2, -1)
    grouped = call(nodes, aten.matmul.default, stacked, shared)
    return call(nodes, aten.reshape.default, grouped, list(shape_of(product)))


def _unrepeated(node: Node) -> tuple[int, Node]:
    """Return the repeats of a value along the first dimension (``bind_rows``), and the value."""
    if is_call(node, aten.repeat):
        source, factors = arguments(node)
        if all(factor == 1 for factor in factors[1:]):
            return int(factors[0]), source
    return 1, node


def _shared_heads(node: Node) -> Node | None:
    """Return the (b, n, s, d) value behind a repeat_kv, or None."""
    if not is_call(node, aten.reshape, aten.view):
        return None
    expanded = operand(node)
    if not is_call(expanded, aten.expand):
        return None
    unsqueezed = operand(expanded)
    if not is_call(unsqueezed, aten.unsqueeze) or unsqueezed.args[1] != 2:
        return None
    source = operand(unsqueezed)
    batch, groups, length, width = shape_of(source)
    sizes = shape_of(expanded)
    if (
        len(sizes) != 5
        or (sizes[0], sizes[1], sizes[3], sizes[4]) != (batch, groups, length, width)
        or shape_of(node) != (batch, groups * sizes[2], length, width)
    ):
        return None
    return source
