"""XNNPACK's partitions, found in time that grows with the graph and not with its square.

ExecuTorch 1.5 grows a partition by one product at a time, and asks each time whether what lies outside leads back into
it: over all nodes that it has, by sets of all that follow each. Here a set of nodes is one number, a bit for each.
It also lists a program's constants again for every node that it asks about, and copies the whole graph, sorted, after
each partition that it takes out.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from zoexport.core.replaced import replaced


class Reach:
    """What follows each node of a graph."""

    def __init__(self, module: GraphModule) -> None:
        nodes = list(module.graph.nodes)
        self._bits = {node: 1 << place for place, node in enumerate(nodes)}
        self._users = {node: self._set(node.users) for node in nodes}
        self._nodes = nodes
        self._after: dict[Node, int] = {}
        for node in reversed(nodes):
            after = self._users[node]
            for user in node.users:
                after |= self._after[user]
            self._after[node] = after

    def _set(self, nodes: Any) -> int:
        found = 0
        for node in nodes:
            found |= self._bits[node]
        return found

    def leads_back(self, nodes: Any) -> bool:
        """Whether a node that is not of ``nodes``, and reads one of them, leads to one of them."""
        inside, readers = 0, 0
        for node in nodes:
            inside |= self._bits[node]
            readers |= self._users[node]
        readers &= ~inside
        while readers:
            lowest = readers & -readers
            if self._after[self._nodes[lowest.bit_length() - 1]] & inside:
                return True
            readers ^= lowest
        return False


def _can_merge(partitioner: Any, one: int, other: int, partitions: Any) -> bool:
    """Whether two partitions together form no cycle with what lies outside."""
    reach: Reach = partitioner.dependency_viewer
    return not reach.leads_back([*partitions[one].nodes, *partitions[other].nodes])


class _Constants:
    """Which placeholders of the program that is looked at are constants."""

    def __init__(self) -> None:
        self._program: torch.export.ExportedProgram | None = None
        self._names: frozenset[str] = frozenset()

    def __call__(self, program: torch.export.ExportedProgram, node: Node) -> bool:
        if program is not self._program:
            signature = program.graph_signature
            self._program = program
            self._names = frozenset(
                [
                    *signature.inputs_to_parameters,
                    *signature.inputs_to_buffers,
                    *signature.inputs_to_lifted_tensor_constants,
                ]
            )
        return node.name in self._names


def sort_in_place(graph: Graph) -> None:
    """Put each node behind those that it reads, and leave the order as it is beside that."""
    nodes = list(graph.nodes)
    place = {node: number for number, node in enumerate(nodes)}
    missing = {node: len(node.all_input_nodes) for node in nodes}
    ready = [place[node] for node in nodes if not missing[node]]
    last = graph._root
    while ready:
        node = nodes[heapq.heappop(ready)]
        if last.next is not node:
            last.append(node)
        last = node
        for user in node.users:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, place[user])


@contextlib.contextmanager
def linear_partitioning() -> Iterator[None]:
    """While this is open, ExecuTorch's partitions are found so, and a graph is sorted once all are taken out."""
    from executorch.exir import lowered_backend_module
    from executorch.exir.backend import backend_api
    from executorch.exir.backend.canonical_partitioners import (
        config_partitioner,
        group_partitioner,
    )

    take_out = backend_api._create_partitions_in_graph_module

    def taken_out(module: GraphModule, *rest: Any) -> Any:
        found = take_out(module, *rest)
        sort_in_place(module.graph)
        return found

    with replaced(
        (lowered_backend_module, "legalize_graph", lambda module: module),
        (backend_api, "_create_partitions_in_graph_module", taken_out),
        (group_partitioner, "_DependencyViewer", Reach),
        (group_partitioner.GroupBasedPartitioner, "_can_merge_partitions", _can_merge),
        (config_partitioner, "is_constant_data", _Constants()),
    ):
        yield
