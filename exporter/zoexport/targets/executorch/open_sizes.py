"""Open sizes: programs for rows of any length, as XNNPACK takes them.

XNNPACK's operators follow the sizes of their inputs; only a reshape can leave one size open, and a slice none. So a
program can take rows of any length in one delegate when its slices and its reshapes of two such sizes are gone
(``legalize``, ``attention``); ``has_open_sizes_left`` says whether they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from zoexport.core.types import Program
from zoexport.ir.graphs import RESHAPES, aten, is_call, placeholders, shape_of
from zoexport.ir.lengths import follows


def has_open_sizes_left(program: Program, length: int) -> bool:
    """Whether a value computed from the tokens is sliced, or reshaped to two sizes that follow the sequence."""
    tokens = placeholders(program)["tokens"]
    constants = {node for node in placeholders(program).values() if node is not tokens}
    for node in program.module.graph.nodes:
        if not is_call(node, *RESHAPES, aten.slice) or node.args[0] in constants:
            continue
        following = sum(follows(size, length) for size in shape_of(node))
        if following > (0 if is_call(node, aten.slice) else 1):
            return True
    return False


def state_open_sizes(exported: Any) -> None:
    """Write the one open size of a reshape as -1; drop the checks of sizes that torch.export adds, and copies.

    Every value of such a graph is contiguous, so that a clone changes nothing.
    """
    graph: torch.fx.Graph = exported.graph_module.graph
    for node in reversed(graph.nodes):
        if _calls(node, "_assert_scalar"):
            graph.erase_node(node)
        elif _calls(node, "clone"):
            node.replace_all_uses_with(node.args[0])
        elif _calls(node, "view_copy"):
            shape = [-1 if isinstance(size, Node) else size for size in node.args[1]]
            if shape.count(-1) == 1:
                node.update_arg(1, shape)
    graph.eliminate_dead_code()
    exported.graph_module.recompile()


def _calls(node: Node, name: str) -> bool:
    """Whether a node calls the edge operator ``aten.<name>``."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.name == f"aten::{name}"
