"""Partitions are the ones that ExecuTorch finds."""

from __future__ import annotations

import random

import pytest
import torch
from torch.fx import Graph, GraphModule
from torch.fx.passes.utils.fuser_utils import validate_partition

from zoexport.targets.executorch.xnnpack.partitioning import (
    Reach,
    linear_partitioning,
    sort_in_place,
)


def _random_graph(seed: int, size: int) -> GraphModule:
    choose = random.Random(seed)
    graph = Graph()
    nodes = [graph.placeholder("x")]
    for _ in range(size):
        inputs = choose.sample(nodes[-6:], min(2, len(nodes)))
        nodes.append(graph.call_function(torch.add, (inputs[0], inputs[-1])))
    graph.output(nodes[-1])
    return GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("seed", range(20))
def test_whether_a_part_leads_back_into_itself(seed: int) -> None:
    module = _random_graph(seed, 30)
    reach = Reach(module)
    choose = random.Random(seed)
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    found = set()
    for count in range(1, 12):
        for part in (choose.sample(nodes, count), nodes[count : 2 * count]):
            valid = validate_partition(part)
            assert reach.leads_back(part) is not valid
            found.add(valid)
    assert found == {True, False}


@pytest.mark.parametrize("seed", range(10))
def test_a_sorted_graph_computes_the_same_and_a_sorted_one_stays(seed: int) -> None:
    module = _random_graph(seed, 30)
    x = torch.full((2,), 0.5)
    before, expected = list(module.graph.nodes), module(x)
    sort_in_place(module.graph)
    assert list(module.graph.nodes) == before
    choose = random.Random(seed)
    for node in choose.sample(before[1:-1], 12):
        choose.choice(before[1:-1]).append(node)
    sort_in_place(module.graph)
    module.graph.lint()
    module.recompile()
    assert torch.equal(module(x), expected)


class _Layers(torch.nn.Module):
    """Linear layers around operators that XNNPACK does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            y = layer(x) * 0.5
            x = x + (torch.cumsum(y, -1) if number % 2 else y)
        return x


def test_the_program_file_is_the_same() -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge

    torch.manual_seed(0)
    module = _Layers()

    def lowered() -> bytes:
        program = torch.export.export(module, (torch.ones(2, 4),))
        return bytes(to_edge(program).to_backend(XnnpackPartitioner()).to_executorch().buffer)

    expected = lowered()
    with linear_partitioning():
        assert lowered() == expected
    assert lowered() == expected
