"""quantize_weights replaces linear weights and the token embedding, a tied weight once, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.graphs import SEQ, WIDTH, captured, operators, tokens
from zoexport.core.errors import ConfigError
from zoexport.core.graph import TrainingGraph
from zoexport.ir.interpret import interpret
from zoexport.methods.reference.quantized import quantize_model
from zoexport.passes.bind_rows import bind_rows
from zoexport.passes.quantize_weights import quantize_weights


class _Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(SEQ, WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.mix = nn.Parameter(torch.zeros(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.positions(torch.arange(x.shape[1]))
        return self.linear(h) + torch.einsum("rsd,ed->rse", h, self.mix)


def _quantized(weights: str, *, tied: bool = False) -> tuple[nn.Module, TrainingGraph]:
    model, graph = captured(_Body(), tied=tied)
    bind_rows(graph, 2)
    quantize_weights(graph, weights=weights, group_size=32)
    settings = {"weights": weights, "activations": "fp32", "group_size": 32}
    quantize_model(model, settings)
    return model, graph


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_numbers_are_those_of_the_quantized_model(weights: str) -> None:
    model, graph = _quantized(weights)
    x = tokens(2)
    torch.testing.assert_close(
        interpret(graph, "forward", {"tokens": x})["logits"], model(x).logits, rtol=1e-4, atol=1e-5
    )


def test_what_is_quantized() -> None:
    _, graph = _quantized("int4")
    program = graph.programs["forward"]
    counts = operators(program)
    assert counts["zoexport.dequantize_int4.default"] == 2  # linear and head
    assert counts["zoexport.embedding_int4.default"] == 1
    assert counts["aten.embedding.default"] == 1  # learned positions
    floats = {name for name, tensor in graph.weights.items() if tensor.dtype == torch.float32}
    assert {"body.mix", "body.positions.weight", "body.linear.bias"} <= floats
    assert not {"body.linear.weight", "embed.weight", "head.weight"} & set(graph.weights)
    assert graph.packing == "int4-symmetric-g32/1"


def test_a_tied_weight_is_stored_once() -> None:
    _, graph = _quantized("int4", tied=True)
    codes = {name for name in graph.weights if name.endswith(".codes")}
    assert "body.linear.weight.codes" in codes
    assert len(codes & {"embed.weight.codes", "head.weight.codes"}) == 1 == len(codes) - 1


def test_a_group_size_that_does_not_divide_is_refused() -> None:
    _, graph = captured(_Body())
    bind_rows(graph, 2)
    with pytest.raises(ConfigError):
        quantize_weights(graph, weights="int4", group_size=64)
