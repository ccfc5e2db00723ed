"""Layers that are alike: one is traced, the graph is as if all were, and what only looks alike is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.tiers import slow_architectures
from tests.support.tiny_models import ARCHITECTURES, tiny
from zoexport.core.graph import TrainingGraph
from zoexport.ir import capture as capturing
from zoexport.ir.capture import capture
from zoexport.ir.graphs import module_path
from zoexport.ir.repeated import Repeated, Unlike

WIDTH, SEQ = 8, 6


class Layer(nn.Module):
    """A residual product; what it reads beside its weight is what differs between tests."""

    def __init__(self, place: int, factor: Callable[[Layer], Any]) -> None:
        super().__init__()
        self.place = place
        self.weight = nn.Parameter(torch.full((WIDTH, WIDTH), 0.1 * (place + 1)))
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        product = nn.functional.linear(x, self.weight)
        y: Tensor = x + product.tanh() * self.factor(self)
        return y


class Stack(nn.Module):
    def __init__(self, factor: Callable[[Layer], Any], count: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, WIDTH)
        self.layers = nn.ModuleList(Layer(place, factor) for place in range(count))

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return x


def described(graph: TrainingGraph) -> Any:
    """A captured program but for the names of its nodes."""
    program = graph.programs["forward"]
    numbers = {node: number for number, node in enumerate(program.module.graph.nodes)}
    nodes = [
        (
            node.op,
            node.op == "call_function" and str(node.target),
            repr(torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: numbers[arg])),
            [
                (tuple(map(str, value.shape)), tuple(map(str, value.stride())), value.dtype)
                for value in (node.meta.get("val"),)
                if isinstance(value, Tensor)
            ],
            module_path(node),
        )
        for node in program.module.graph.nodes
    ]
    return nodes, program.inputs, program.outputs, list(graph.weights), graph.parameters


def all_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def unlike(*_: Any) -> None:
        raise Unlike

    monkeypatch.setattr(Repeated, "write_out", unlike)


def exported(model: nn.Module) -> tuple[torch.export.ExportedProgram, int]:
    """As :func:`capture` exports it; and how often it did."""
    runs = []
    whole = torch.export.export

    def counted(*args: Any, **kwargs: Any) -> Any:
        runs.append(1)
        return whole(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(torch.export, "export", counted)
        found = capturing._exported(model, torch.zeros((3, SEQ), dtype=torch.int64))
    return found, len(runs)


@pytest.mark.parametrize("name", slow_architectures(ARCHITECTURES))
def test_the_graph_is_that_of_a_model_whose_layers_are_all_traced(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(name)
    once = described(capture(model, 24))
    all_traced(monkeypatch)
    assert once == described(capture(model, 24))


def test_a_layer_that_is_alike_does_not_run() -> None:
    calls = []

    def factor(layer: Layer) -> float:
        calls.append(layer)
        return 2.0

    model = Stack(factor)
    found, runs = exported(model)
    assert (len(calls), runs) == (1, 1)
    tokens = torch.arange(2 * SEQ).reshape(2, SEQ) % 10
    torch.testing.assert_close(found.module()(tokens), model(tokens))
    assert "place" in vars(model.layers[0])
    assert "forward" not in vars(model.layers[0])


def test_layers_that_share_a_module_keep_their_paths() -> None:
    shared = nn.Tanh()

    def factor(layer: Layer) -> Tensor:
        made: Tensor = layer.shared(layer.weight.mean())
        return made

    model = Stack(factor, count=2)
    for layer in model.layers:
        layer.shared = shared
    found, _ = exported(model)
    paths = {module_path(node) for node in found.graph.nodes if node.op == "call_function"}
    assert {"layers.0", "layers.1"} <= paths and "shared" not in paths


def test_layers_that_read_their_place_are_all_traced() -> None:
    model = Stack(lambda layer: 1.0 / (layer.place + 1))
    found, runs = exported(model)
    assert runs == 2
    tokens = torch.arange(2 * SEQ).reshape(2, SEQ) % 10
    torch.testing.assert_close(found.module()(tokens), model(tokens))


@pytest.mark.parametrize("differs", ["attribute", "shared", "hook"])
def test_what_only_looks_alike_is_traced(differs: str) -> None:
    calls = []

    def factor(layer: Layer) -> float:
        calls.append(layer)
        return getattr(layer, "scale", 1.0)

    model = Stack(factor, count=2)
    first: Any
    second: Any
    first, second = model.layers
    if differs == "attribute":
        first.scale, second.scale = 1.0, 3.0
    elif differs == "shared":
        second.weight = first.weight
    else:
        second.register_forward_hook(lambda *found: 2 * found[-1])
    found, runs = exported(model)
    assert ([calls[0], calls[1]], runs) == ([first, second], 1)
    tokens = torch.arange(2 * SEQ).reshape(2, SEQ) % 10
    torch.testing.assert_close(found.module()(tokens), model(tokens))


def test_a_layer_whose_parts_are_read_elsewhere_is_refused() -> None:
    class Leaking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept: list[Tensor] = []
            self.stack = Stack(self.keep)

        def keep(self, layer: Layer) -> Any:
            factor = layer.weight.sum()
            self.kept.append(factor)
            return factor

        def forward(self, tokens: Tensor) -> Tensor:
            self.kept.clear()
            y: Tensor = self.stack(tokens) + sum(self.kept)
            self.kept.clear()
            return y

    model = Leaking()
    found, runs = exported(model)
    assert runs == 2
    tokens = torch.arange(2 * SEQ).reshape(2, SEQ) % 10
    torch.testing.assert_close(found.module()(tokens), model(tokens))
