"""find_linears turns hand-written products with weights into linear calls."""

from __future__ import annotations

import torch
from torch import nn

from tests.support.graphs import WIDTH, captured, operators, tokens
from zoexport.ir.interpret import interpret
from zoexport.passes.find_linears import find_linears, linear_weights


class _ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        computed = x.transpose(1, 2) @ x
        return x @ self.weight.T + self.bias + x @ computed.mean(0).t()


def test_weight_products_become_linear_and_computed_ones_stay() -> None:
    model, graph = captured(_ByHand())
    before = operators(graph.programs["forward"])
    find_linears(graph)
    after = operators(graph.programs["forward"])
    assert after["aten.linear.default"] == before["aten.linear.default"] + 1
    assert after["aten.matmul.default"] == before["aten.matmul.default"] - 1 == 2
    x = tokens(2)
    torch.testing.assert_close(
        interpret(graph, "forward", {"tokens": x})["logits"], model(x).logits
    )


class _OnlyItsWeight(nn.Module):
    """Two linear layers; the weight of one is also read without a product, as Mamba reads dt_proj's."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Linear(WIDTH, WIDTH)
        self.read = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(x) + self.read.weight.sum(0)


def test_weights_that_are_only_read_are_no_linear_layers() -> None:
    _, graph = captured(_OnlyItsWeight())
    names = {name for name in linear_weights(graph) if "body" in name}
    assert names == {"body.plain.weight"}
