"""Decomposed graphs: the same numbers, by operators that the table leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx

from zoexport.core.graph import Program, Value
from zoexport.core.interpreted import InterpretedGraph
from zoexport.ir.decompose import Decompositions, core_decompositions
from zoexport.ir.graphs import aten, placeholders, writes
from zoexport.ir.shapes import record_shapes


def _program(function: Callable[..., Any], *examples: Tensor) -> Program:
    """As ``function`` is traced, with recorded shapes."""
    traced = make_fx(function, pre_dispatch=True)(*examples)
    inputs = [
        Value(f"x{number}", "activation", "float32", tuple(example.shape))
        for number, example in enumerate(examples)
    ]
    for node, value in zip(traced.graph.find_nodes(op="placeholder"), inputs, strict=True):
        node.name = node.target = value.name
    program = Program("forward", InterpretedGraph(traced.graph), inputs, [])
    assert [*placeholders(program)]
    record_shapes(program)
    return program


def _two_layers(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    for _ in range(2):
        x = torch.nn.functional.silu(torch.nn.functional.linear(x, weight)) + x * x
        x = torch.nn.functional.layer_norm(x, (6,))
    parts = torch.split(x, [2, 4], -1)
    return parts[0], parts[1].t(), torch.matmul(x.view(1, -1, 6), weight.t())


def _targets(graph: Graph) -> list[Any]:
    return [node.target for node in graph.nodes if node.op == "call_function"]


def test_numbers_stay_and_operators_go() -> None:
    torch.manual_seed(1)
    weight = torch.randn(6, 6)
    decompositions, table = Decompositions(core_decompositions()), core_decompositions()
    # Traced, again by the remembered parts, and at another size.
    for rows in (4, 4, 5):
        x = torch.randn(rows, 6)
        graph = _program(_two_layers, x, weight).module.graph
        assert {aten.linear.default, aten.silu.default} <= {*_targets(graph)}
        made = decompositions.apply(graph)
        assert not {*_targets(made)} & {*table, aten.linear.default}
        found = InterpretedGraph(made)(x, weight)
        for one, expected in zip(found, _two_layers(x, weight), strict=True):
            torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-6)


def test_what_a_call_is_given_twice() -> None:
    """One value as both operands is one node, and a call without parts becomes what it returns."""
    x = torch.randn(3, 3)

    def squared(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.matmul(x, x), x.to(torch.float32)

    program = _program(squared, x)
    made = Decompositions(core_decompositions()).apply(program.module.graph)
    product, same = InterpretedGraph(made)(x)
    torch.testing.assert_close(product, x @ x)
    torch.testing.assert_close(same, x)


def test_decompositions_that_write_into_values_are_made_functional() -> None:
    """PyTorch's decomposition of rms_norm adds eps in place."""
    x, weight = torch.randn(2, 6), torch.randn(6)
    program = _program(lambda x, w: [torch.rms_norm(x, (6,), w, 1e-5)], x, weight)
    graph = Decompositions(core_decompositions()).apply(program.module.graph)
    assert not any(map(writes, graph.nodes))
    (found,) = InterpretedGraph(graph)(x, weight)
    torch.testing.assert_close(found, torch.rms_norm(x, (6,), weight, 1e-5))
