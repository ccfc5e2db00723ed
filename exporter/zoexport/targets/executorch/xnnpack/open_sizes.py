"""Open sizes: programs for rows of any length, as XNNPACK and ExecuTorch take them.

A program is exported at the length at which it was captured (``ir.lengths``), since every step of lowering is slow with
symbolic sizes. XNNPACK's operators follow the sizes of their inputs when they run; only a reshape can leave one size
open, and a slice none. So the program takes shorter rows once

- no value is sliced, broadcast by a product, or reshaped to two sizes of the sequence (``legalize``, ``attention``;
  ``has_open_sizes_left``),
- constants over positions are cut when it runs (``cut_constants``),
- reshapes name their open size as -1 (``state_open_sizes``),
- ExecuTorch may shrink the tensors between operators (``OpenSizes``).
"""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass
from executorch.exir.schema import TensorShapeDynamism
from executorch.exir.tensor import TensorSpec
from torch.fx import Node
from torch.fx.passes.infra.pass_base import PassResult
from torch.utils import _pytree as pytree

from zoexport.core.types import Program
from zoexport.ir.graphs import RESHAPES, aten, is_call, placeholders, shape_of, zo
from zoexport.ir.lengths import follows, position_axes


def has_open_sizes_left(program: Program, length: int) -> bool:
    """Return whether an operator on values computed from the tokens cannot take shorter rows.

    Such operators are slices, reshapes to two sizes that follow the sequence, and matrix products whose batches differ:
    ExecuTorch expands the inputs of these products to the captured sizes.
    """
    tokens = placeholders(program)["tokens"]
    constants = {node for node in placeholders(program).values() if node is not tokens}
    for node in program.module.graph.nodes:
        if not is_call(node, *RESHAPES, aten.slice, aten.matmul) or node.args[0] in constants:
            continue
        following = sum(follows(size, length) for size in shape_of(node))
        if following > (1 if is_call(node, *RESHAPES) else 0):
            return True
    return False


def cut_constants(program: Program, length: int) -> None:
    """Read tables over positions through ``first_positions``; a reshape that merges axes becomes part of it."""
    nodes = program.module.graph
    tokens = placeholders(program)["tokens"]
    for value, node in zip(program.inputs, placeholders(program).values(), strict=True):
        axes = position_axes(value, length)
        if not axes:
            continue
        merging = [user for user in node.users if is_call(user, *RESHAPES)]
        for merge, readers in ((True, merging), (False, [*node.users.keys() - {*merging}])):
            if not readers:
                continue
            with nodes.inserting_before(next(iter(node.users))):
                arguments = (node, tokens, axes[0], len(axes), merge)
                cut = nodes.call_function(zo.first_positions.default, arguments)
            for reader in readers:
                if merge:
                    reader.replace_all_uses_with(cut)
                    nodes.erase_node(reader)
                else:
                    reader.replace_input_with(node, cut)
    program.module.recompile()


def state_open_sizes(exported: Any, length: int) -> None:
    """Write the open size of each reshape as -1, and drop copies: every value of such a graph is contiguous."""
    graph: torch.fx.Graph = exported.graph_module.graph
    for node in reversed(graph.nodes):
        if _calls(node, "clone"):
            node.replace_all_uses_with(node.args[0])
        elif _calls(node, "view_copy"):
            shape = [-1 if follows(size, length) else size for size in node.meta["val"].shape]
            if shape.count(-1) == 1:
                node.update_arg(1, shape)
    graph.eliminate_dead_code()
    exported.graph_module.recompile()


class OpenSizes(ConstraintBasedSymShapeEvalPass):
    """ExecuTorch's evaluation of upper bounds; tensors whose sizes follow the sequence may shrink below theirs."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        """Mark the tensors of every node."""
        result = super().call(graph_module)
        for node in graph_module.graph.nodes:
            for spec in pytree.tree_leaves(node.meta.get("spec", [])):
                if (
                    isinstance(spec, TensorSpec)
                    and not spec.const
                    and any(follows(size, self.length) for size in spec.shape)
                ):
                    spec.shape_dynamism = TensorShapeDynamism.DYNAMIC_BOUND
        return result


def _calls(node: Node, name: str) -> bool:
    """Whether a node calls the edge operator ``aten.<name>``."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.name == f"aten::{name}"
