"""split_layers: which layers share a program, what stages bind, what passes between them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.graphs import WIDTH, operators
from tests.support.splits import LENGTH, Layer, bound, calls, passed, small, tiny_graph
from zoexport.core.errors import VerifyError
from zoexport.core.graph import TrainingGraph
from zoexport.ir.graphs import output_node, placeholders


class _Relu(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.linear(x))


def split(body: Any, **settings: Any) -> TrainingGraph:
    return small(body, "split_layers", **settings)[1]


def test_equal_layers_share_one_program() -> None:
    graph = split([Layer(), Layer(), Layer()], targets=["body.1.linear"])
    # The one with an adapter is another program than the two without.
    assert calls(graph) == [
        ("embedding", "embedding", None),
        ("body.0", "layer.0", None),
        ("body.1", "layer.1", None),
        ("body.2", "layer.0", None),
        ("head", "head", None),
    ]
    assert list(graph.programs) == ["embedding", "layer.0", "layer.1", "head"]
    assert all(name == program.family for name, program in graph.programs.items())


def test_names_in_programs_are_those_that_stages_bind() -> None:
    graph = split([Layer(), Layer()], targets=["body.0.linear", "body.1.linear"])
    assert bound(graph) == {
        "embedding": {"embed.weight": "embed.weight"},
        **{
            f"body.{number}": {
                name: name.replace("linear", f"body.{number}.linear")
                for name in ("linear.weight", "linear.bias", "lora_A.linear", "lora_B.linear")
            }
            for number in range(2)
        },
        "head": {"head.weight": "head.weight"},
    }
    layer = graph.programs["layer.0"]
    declared = [(value.name, value.role, value.shape) for value in layer.inputs]
    assert declared[0] == ("hidden", "activation", (graph.rows, LENGTH, WIDTH))
    assert declared[1:] == [
        ("linear.weight", "weight", (WIDTH, WIDTH)),
        ("linear.bias", "weight", (WIDTH,)),
        ("lora_A.linear", "state", (WIDTH, 2)),
        ("lora_B.linear", "state", (2, WIDTH)),
    ]
    assert [(value.name, value.role) for value in layer.outputs] == [("hidden", "activation")]


@pytest.mark.parametrize(
    "other", [_Relu(), Layer(bias=False)], ids=["an operator", "a missing bias"]
)
def test_unlike_layers_do_not_share(other: nn.Module) -> None:
    graph = split([Layer(), other, Layer()])
    assert [stage.forward for stage in graph.stages[1:-1]] == ["layer.0", "layer.1", "layer.0"]


def test_another_number_in_the_layer_is_another_program() -> None:
    scale = [_Scaled(0.5), _Scaled(0.25), _Scaled(0.5)]
    graph = split(scale)
    assert [stage.forward for stage in graph.stages[1:-1]] == ["layer.0", "layer.1", "layer.0"]


class _Scaled(Layer):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.factor * self.linear(x)


def test_tied_weights_are_bound_by_both_ends() -> None:
    graph = split([Layer()], tied=True)
    assert bound(graph)["embedding"] == bound(graph)["head"] == {"head.weight": "head.weight"}
    assert "embed.weight" not in graph.weights


class _Tables(nn.Module):
    """Layers that read a table which is made once, and one of their own that equals it in shape."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Rotated(2.0), _Rotated(3.0), _Rotated(2.0)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.arange(x.shape[1])[:, None].cos()
        for layer in self.layers:
            x = layer(x, table)
        return x


class _Rotated(Layer):
    def __init__(self, period: float) -> None:
        super().__init__()
        self.period = torch.tensor(period)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x) * table * (torch.arange(x.shape[1])[:, None] / self.period).sin()


def test_tables_are_inputs_that_stages_bind() -> None:
    graph = split(_Tables())
    layers = [stage for stage in graph.stages if stage.name.startswith("body.layers.")]
    # They differ in a table alone, and that is no part of the program.
    assert [stage.forward for stage in layers] == ["layer.0"] * 3
    shared = [{stage.bind["shared.0"], stage.bind["shared.1"]} for stage in layers]
    assert shared[0] == shared[2] != shared[1]
    (common,) = shared[0] & shared[1]
    expected = torch.arange(LENGTH)[:, None].cos()
    torch.testing.assert_close(graph.weights[common], expected)
    assert not any(
        "cos" in name or "arange" in name for name in operators(graph.programs["layer.0"])
    )


def test_gemma3s_local_and_global_layers_are_one_program() -> None:
    graph = passed("gemma3", "split_layers")
    layers = graph.stages[1:-1]
    assert [stage.forward for stage in layers] == ["layer.0"] * 3
    tables = [
        {local: name for local, name in stage.bind.items() if name.startswith("constant.")}
        for stage in layers
    ]
    assert tables[0] == tables[1] != tables[2]
    # Rotary tables of both kinds and the masks.
    assert tables[0].keys() == tables[2].keys() and len(tables[0]) == 3
    assert not {*tables[0].values()} & {*tables[2].values()}


@pytest.mark.parametrize("name", ["falcon", "llama", "bloom", "gpt2"])
def test_the_layers_of_a_model_are_one_program(name: str) -> None:
    graph, _ = tiny_graph(name)
    assert {stage.forward for stage in graph.stages[1:-1]} == {"layer.0"}


class _TwoValues(nn.Module):
    """The second value is made by the first layer, passed through the second, read by the third."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.layers[0](x)
        return self.layers[2](self.layers[1](kept)) * kept


def test_a_value_that_later_layers_read_is_passed_through() -> None:
    model, graph = small(_TwoValues(), "split_layers")
    passed = [
        [value.name for value in graph.programs[stage.forward].outputs] for stage in graph.stages
    ]
    assert passed == [["hidden"], ["hidden"], *[["hidden.0", "hidden.1"]] * 2, ["logits"]]
    second = graph.programs[graph.stages[2].forward]
    (returned,) = output_node(second.module).args
    kept = placeholders(second)["hidden"]
    # An output is never an input itself.
    assert kept not in returned and operators(second)["aten.clone.default"] == 1
    assert stage_results(graph, model) < 1e-6


def stage_results(graph: TrainingGraph, model: nn.Module) -> float:
    """How far the stages one after another are from the model, on the rows that the graph was captured for."""
    tokens = torch.arange(graph.rows * LENGTH).view(graph.rows, LENGTH) % 11
    values = [tokens]
    for stage in graph.stages:
        program = graph.programs[stage.forward]
        given = iter(values)
        values = program.module(
            *(
                graph.weights[stage.bind[value.name]] if value.role == "weight" else next(given)
                for value in program.inputs
            )
        )
    return float((values[0] - model(tokens).logits).abs().max())


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](self.layers[1](self.layers[0](x)))


class _IntegersCross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Counts(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, counts = self.layers[0](x)
        return self.layers[1](x) * counts


class _Counts(Layer):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(x), x.argmax(-1, keepdim=True)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (_Twice(), "a value of layer 2 in layer 1"),
        (_IntegersCross(), "a value of type torch.int64 that later layers read"),
        (nn.Linear(WIDTH, WIDTH), "no module of a list"),
    ],
)
def test_refused(body: nn.Module, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        split(body)


def test_layers_in_another_order_run_in_that_order() -> None:
    model, graph = small(_Backwards(), "split_layers")
    names = [stage.name for stage in graph.stages]
    assert names == ["embedding", "body.layers.1", "body.layers.0", "head"]
    assert stage_results(graph, model) < 1e-6


class _Backwards(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](self.layers[1](x))
