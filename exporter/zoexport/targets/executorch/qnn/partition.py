"""Partition a graph for the NPU and explain rejected nodes. Imports ExecuTorch's QNN backend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from executorch.backends.qualcomm.builders.utils import is_parameter
from executorch.backends.qualcomm.partition.qnn_partitioner import (
    QnnOperatorSupport,
    QnnPartitioner,
    generate_partitions_from_list_of_nodes,
)
from torch.fx import Node
from torch.fx.passes.infra.partitioner import Partition

WEIGHTS = 16 * 2**20
"""Most weights of a context: QNN's compiler takes about 40 bytes for each, and the HTP has 32-bit addresses."""


class ExplainingPartitioner(QnnPartitioner):
    """ExecuTorch's partitioner, which notes for each operator that it leaves why it does.

    Args:
        specs: of ExecuTorch's QNN backend.
        decomposed: names of operators ("aten::matmul") that are to be decomposed though the HTP has them.

    Attributes:
        reasons: by the operator's name, as ``exported.fallback_of`` gives it.
    """

    def __init__(self, specs: list[Any], decomposed: frozenset[str] = frozenset()) -> None:
        super().__init__(specs)
        self.decomposed = decomposed
        self.reasons: dict[str, str] = {}

    def ops_to_not_decompose(self, ep: torch.export.ExportedProgram) -> Any:
        """ExecuTorch's list without ``decomposed``."""
        kept, condition = super().ops_to_not_decompose(ep)
        return [op for op in kept if op._schema.name not in self.decomposed], condition

    def generate_partitions(self, edge_program: torch.export.ExportedProgram) -> list[Any]:
        """Partition as ExecuTorch does, with support checks by :class:`_ExplainingSupport`."""
        self.op_support_checker = _ExplainingSupport(
            self.reasons,
            edge_program,
            self.compiler_specs_snapshot,
            self.skip_node_id_set,
            self.skip_node_op_set,
        )
        found = generate_partitions_from_list_of_nodes(
            edge_program.graph_module, op_support=self.op_support_checker
        )
        self.reasons["aten::view_copy"] = "computes nothing, and is no call of its own to the NPU"
        pieces = [piece for whole in found for piece in _pieces(whole.nodes, edge_program)]
        kept = [piece for piece in pieces if not all(map(_is_view, piece))]
        return [Partition(id=number, nodes=piece) for number, piece in enumerate(kept)]


def _pieces(nodes: Iterable[Node], program: torch.export.ExportedProgram) -> Iterator[list[Node]]:
    """Divide a partition in the order of execution, after every :data:`WEIGHTS` weights."""
    inside = set(nodes)
    weights = {node for node in program.graph.nodes if is_parameter(node, program)}
    constant = set(weights)
    waiting: dict[Node, list[Node]] = {}  # what dequantizes weights, until an operator takes it
    piece: list[Node] = []
    held = 0
    for node in program.graph.nodes:
        if node not in inside:
            continue
        added = [call for operand in node.all_input_nodes for call in waiting.pop(operand, [])]
        added.append(node)
        if constant.issuperset(node.all_input_nodes):
            constant.add(node)
            waiting[node] = added
            continue
        taken = weights & {operand for call in added for operand in call.all_input_nodes}
        size = sum(weight.meta["val"].numel() for weight in taken)
        if piece and held + size > WEIGHTS:
            yield piece
            piece, held = [], 0
        piece += added
        held += size
    yield piece + [call for calls in waiting.values() for call in calls]


def _is_view(node: Node) -> bool:
    """Return whether a node is a view: free on the CPU, but a call to the NPU as a delegate."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.name == "aten::view_copy"


class _ExplainingSupport(QnnOperatorSupport):
    def __init__(self, reasons: dict[str, str], *given: Any) -> None:
        super().__init__(*given)
        self.reasons = reasons

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        supported = bool(super().is_node_supported(submodules, node))
        schema = getattr(node.target, "_schema", None)
        if not supported and node.op == "call_function" and schema is not None:
            name = getattr(node.target, "__name__", "")
            known = name in self.node_visitors
            if not schema.name.startswith("zoexport::"):
                value = node.meta.get("val")
                shape = tuple(value.shape) if isinstance(value, torch.Tensor) else "several results"
                self.reasons[schema.name] = (
                    f"QNN refuses it for the HTP of this chip (result {shape})"
                    if known
                    else "ExecuTorch's QNN backend has no such operator"
                )
        return supported
