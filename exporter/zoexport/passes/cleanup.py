"""cleanup: remove what export leaves for its own checks and what does nothing in inference.

Before::

    h = aten.to.dtype(x, torch.float32)      # x is float32
    _ = aten._assert_tensor_metadata(h, ...)
    d = aten.dropout(h, 0.1, False)

After: every use of ``d`` reads ``x``. Of operators that do the same, later passes see one: ``reshape`` where export
says ``view``, ``expand`` where it says ``broadcast_to``.

Left alone: a conversion that changes the dtype, and a slice that cuts anything off.
"""

from __future__ import annotations

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from zoexport.core.graph import TrainingGraph
from zoexport.ir.graphs import arguments, aten, is_call, operand, remove_unused_weights
from zoexport.ir.rewrite import rewrite

_CHECKS = (
    aten._assert_tensor_metadata,
    aten._assert_scalar,
    aten._assert_async,
    aten.sym_constrain_range,
    aten.sym_constrain_range_for_size,
)
_IDENTITIES = (
    aten.alias,
    aten.detach,
    aten.contiguous,
    aten.clone,
    aten.lift_fresh_copy,
    aten.detach_,
)
_END = 2**63 - 1


def cleanup(graph: TrainingGraph) -> TrainingGraph:
    """Apply the rewrite to every program."""
    for program in graph.programs.values():
        nodes = program.module.graph
        for node in list(nodes.nodes):
            if is_call(node, *_CHECKS):
                nodes.erase_node(node)
            elif is_call(node, aten.view, aten._unsafe_view):
                # A view of what was contiguous only through a call removed here would not be legal.
                node.target = aten.reshape.default
            elif is_call(node, aten.broadcast_to):
                node.target = aten.expand.default
        rewrite(program, [((), lambda node: operand(node) if _does_nothing(node) else None)])
        remove_unused_weights(program)
    return graph


def _does_nothing(node: torch.fx.Node) -> bool:
    if is_call(node, *_IDENTITIES):
        return True
    if is_call(node, aten.dropout):
        return bool(node.args[1] == 0 or node.args[2] is False)
    if is_call(node, aten.to, aten._to_copy, aten.type_as):
        return bool(operand(node).meta["val"].dtype == node.meta["val"].dtype)
    if is_call(node, aten.slice):
        given, defaults = arguments(node), (None, 0, None, None, 1)
        _, dim, start, end, step = given + defaults[len(given) :]
        size = operand(node).meta["val"].shape[dim]
        all_of_them = start in (0, None) or (isinstance(size, int) and start == -size)
        return all_of_them and end in (_END, None) and bool(step == 1)
    if is_call(node, aten.expand, aten.reshape):
        before, after = operand(node).meta["val"].shape, node.meta["val"].shape
        return len(before) == len(after) and all(
            statically_known_true(old == new) for old, new in zip(before, after, strict=True)
        )
    return False
