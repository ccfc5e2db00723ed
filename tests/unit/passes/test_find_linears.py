"""find_linears turns hand-written products with weights into linear calls."""

from __future__ import annotations

import torch
from torch import nn

from tests.support.graphs import WIDTH, captured, operators, tokens
from zoexport.ir.interpret import interpret
from zoexport.passes.find_linears import find_linears


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
