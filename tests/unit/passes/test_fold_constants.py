"""fold_constants stores what depends on no input, once, and nothing that inputs reach."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.graphs import SEQ, WIDTH, captured, operators, tokens
from zoexport.core.graph import TrainingGraph
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


class _Mixed(nn.Module):
    """Reads a table, a parameter changed by a table, and a parameter changed by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.arange(WIDTH).cos()
        return x * table.sin() * (self.scale + table) * (1 + self.scale)


def test_what_depends_on_kept_weights_is_computed_on_the_device() -> None:
    model, graph = captured(_Mixed())
    bind_rows(graph, 2)
    fold_constants(graph, keep=graph.parameters)
    # Nothing but the table and what was made of it: the parameter has no value yet.
    table = torch.arange(WIDTH).cos()
    stored = [graph.weights[name] for name in graph.weights if name.startswith("constant.")]
    assert len(stored) == 2
    assert {torch.equal(value, table) for value in stored} == {True, False}
    assert "body.scale" in graph.weights
    left = operators(graph.programs["forward"])
    assert left["aten.add.Tensor"] == 2 and not [name for name in left if "cos" in name]
    graph.weights["body.scale"] = torch.linspace(0, 1, WIDTH)
    with torch.no_grad():
        model.body.scale.copy_(graph.weights["body.scale"])
    found = interpret(graph, "forward", {"tokens": tokens(2)})["logits"]
    torch.testing.assert_close(found, model(tokens(2)).logits)


def test_without_keep_parameters_are_folded_too() -> None:
    _, graph = captured(_Mixed())
    bind_rows(graph, 2)
    fold_constants(graph)
    assert "body.scale" not in graph.weights
    assert operators(graph.programs["forward"])["aten.add.Tensor"] == 0
