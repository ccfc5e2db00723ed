"""fold_constants stores what depends on no input, once, and nothing that inputs reach."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.graphs import SEQ, WIDTH, captured, operators, tokens
from zoexport.core.types import TrainingGraph
from zoexport.ir.interpret import interpret
from zoexport.passes import fold_constants as module
from zoexport.passes.bind_rows import bind_rows
from zoexport.passes.fold_constants import fold_constants


class _Tables(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = (torch.arange(x.shape[1])[:, None] * torch.ones(WIDTH)).cos()
        again = (torch.arange(x.shape[1])[:, None] * torch.ones(WIDTH)).cos()
        return x * table + again * x.sum(-1, keepdim=True)


def _bound() -> tuple[nn.Module, TrainingGraph]:
    model, graph = captured(_Tables())
    return model, bind_rows(graph, 2)


def test_equal_tables_are_stored_once() -> None:
    model, graph = _bound()
    fold_constants(graph)
    constants = [name for name in graph.weights if name.startswith("constant.")]
    assert len(constants) == 1
    assert graph.weights[constants[0]].shape == (SEQ, WIDTH)
    left = operators(graph.programs["forward"])
    assert not [name for name in left if "arange" in name or "cos" in name]
    assert left["aten.sum.dim_IntList"] == 1
    x = tokens(2)
    torch.testing.assert_close(
        interpret(graph, "forward", {"tokens": x})["logits"], model(x).logits
    )


def test_large_results_are_computed_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGEST", 8)
    _, graph = _bound()
    fold_constants(graph)
    assert operators(graph.programs["forward"])["aten.cos.default"] == 2
