"""quantize_stages: programs that read codes and scales, stages that bind them, and what stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.graphs import VOCAB, WIDTH, operators
from tests.support.splits import Layer, bound, small, tiny_graph
from zoexport.core.errors import ConfigError
from zoexport.core.graph import TrainingGraph

PARTS = {
    "int4": {
        "codes": (torch.uint8, (WIDTH, WIDTH // 2)),
        "scales": (torch.bfloat16, (WIDTH, WIDTH // 32)),
    },
    "int8": {"codes": (torch.int8, (WIDTH, WIDTH)), "scales": (torch.float32, (WIDTH,))},
}


def quantized(weights: str, **settings: Any) -> TrainingGraph:
    return small([Layer(), Layer()], "quantize_stages", weights=weights, **settings)[1]


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_layers_read_codes_and_scales(weights: str) -> None:
    graph = quantized(weights, targets=["body.0.linear", "body.1.linear"])
    layer = graph.programs["layer.0"]
    linear = {"int4": "zoexport.linear_int4.default", "int8": "zoexport.linear_int8.default"}
    assert operators(layer)[linear[weights]] == 1
    assert operators(layer)["aten.linear.default"] == 0
    assert operators(layer)["aten.matmul.default"] == 2  # the adapter
    for number in range(2):
        bind = bound(graph)[f"body.{number}"]
        assert "linear.weight" not in bind and bind["linear.bias"] == f"body.{number}.linear.bias"
        for part, (dtype, shape) in PARTS[weights].items():
            name = bind[f"linear.weight.{part}"]
            assert name == f"body.{number}.linear.weight.{part}"
            made = graph.weights[name]
            assert (made.dtype, tuple(made.shape), made.device.type) == (dtype, shape, "meta")
            (value,) = (v for v in layer.inputs if v.name == f"linear.weight.{part}")
            assert (value.dtype, value.shape) == (str(dtype).removeprefix("torch."), shape)
    group = (32, False) if weights == "int4" else (0, False)
    assert graph.quantized == dict.fromkeys(
        ("embed.weight", "body.0.linear.weight", "body.1.linear.weight", "head.weight"), group
    )


def test_the_packing_is_named() -> None:
    assert quantized("int4").packing == "int4-symmetric-g32/1"
    assert quantized("int8").packing == "int8-symmetric/1"


def test_a_tied_embedding_is_quantized_once() -> None:
    graph = quantized("int4", tied=True)
    names = {f"head.weight.{part}": f"head.weight.{part}" for part in ("codes", "scales")}
    assert bound(graph)["embedding"] == bound(graph)["head"] == names
    assert graph.weights["head.weight.codes"].shape == (VOCAB, WIDTH // 2)
    assert operators(graph.programs["embedding"])["zoexport.embedding_int4.default"] == 1
    assert operators(graph.programs["head"])["zoexport.linear_int4.default"] == 1


def test_an_int8_embedding_looks_up_codes_and_scales() -> None:
    embedding = quantized("int8").programs["embedding"]
    assert operators(embedding)["aten.embedding.default"] == 2
    assert "zoexport.embedding_int4.default" not in operators(embedding)


@pytest.mark.parametrize("group_size", [64, 48, 0])
def test_a_group_size_that_does_not_fit_is_one_clear_error(group_size: int) -> None:
    if group_size == 0:
        with pytest.raises(ConfigError, match="group_size"):
            quantized("int4", group_size=group_size)
        return
    with pytest.raises(ConfigError, match=r"setting 'group_size', for embed.weight") as error:
        quantized("int4", group_size=group_size)
    assert str(group_size) in error.value.found


def test_tables_over_positions_are_left_alone() -> None:
    graph, _ = tiny_graph("gpt2", weights="int4")
    bind = bound(graph)["embedding"]
    assert bind["transformer.wpe.weight"] == "transformer.wpe.weight"
    # Tied to the head, under whose name it is captured.
    assert {*bind} - {"transformer.wpe.weight"} >= {"lm_head.weight.codes", "lm_head.weight.scales"}
    assert not [name for name in graph.quantized if "wpe" in name or ".ln_" in name]


class _ReadElsewhere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.linear.weight.sum(0)


def test_a_weight_that_others_read_too_stays() -> None:
    _, graph = small([_ReadElsewhere()], "quantize_stages", weights="int4")
    assert bound(graph)["body.0"] == {"linear.weight": "body.0.linear.weight"}
    assert "body.0.linear.weight" not in graph.quantized
