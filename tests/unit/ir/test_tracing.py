"""Graphs that are traced without code behave as others do."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch.fx import Graph, GraphModule

from zoexport.ir.tracing import lean_tracing


def _doubling() -> GraphModule:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.aten.mul.Tensor, (x, 2.0)))
    return GraphModule(torch.nn.Module(), graph)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[GraphModule]:
    """The modules whose code was written."""
    found: list[GraphModule] = []
    recompile = GraphModule.recompile

    def recorded(module: GraphModule) -> object:
        found.append(module)
        return recompile(module)

    monkeypatch.setattr(GraphModule, "recompile", recorded)
    return found


def test_code_of_a_graph_that_does_not_run_is_not_written(written: list[GraphModule]) -> None:
    with lean_tracing():
        module = _doubling()
        module.recompile()
    assert not written
    assert torch.equal(module(torch.ones(3)), torch.full((3,), 2.0))
    assert written == [module]
    assert torch.equal(module(torch.ones(3)), torch.full((3,), 2.0))
    assert written == [module]


def test_a_changed_graph_runs_as_changed() -> None:
    with lean_tracing():
        module = _doubling()
        assert module(torch.ones(1)).item() == 2
        (node,) = (node for node in module.graph.nodes if node.op == "call_function")
        node.args = (node.args[0], 3.0)
        module.recompile()
        assert module(torch.ones(1)).item() == 3
        node.args = (node.args[0], 4.0)
        module.recompile()
    assert module(torch.ones(1)).item() == 4


def test_whoever_reads_the_code_finds_it() -> None:
    plain = _doubling()
    with lean_tracing():
        for read in (
            lambda module: module.code,
            str,
            lambda module: inspect.signature(module.forward),
            lambda module: inspect.signature(type(module).forward),
            lambda module: module._lineno_map,
            lambda module: copy.deepcopy(module).code,
            lambda module: copy.copy(module).code,
        ):
            assert read(_doubling()) == read(plain)


def test_modules_inside_run_as_changed() -> None:
    with lean_tracing():
        inner = _doubling()
        graph = Graph()
        graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
        root = torch.nn.Module()
        root.inner = inner
        outer = GraphModule(root, graph)
        assert outer(torch.ones(1)).item() == 2
        (node,) = (node for node in inner.graph.nodes if node.op == "call_function")
        node.args = (node.args[0], 5.0)
        outer.recompile()
        assert outer(torch.ones(1)).item() == 5
