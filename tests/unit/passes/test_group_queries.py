"""group_queries removes the copies of shared key-value heads and keeps the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.graphs import WIDTH, captured, operators, tokens
from zoexport.core.graph import TrainingGraph
from zoexport.ir.interpret import interpret
from zoexport.passes.bind_rows import bind_rows
from zoexport.passes.cleanup import cleanup
from zoexport.passes.group_queries import group_queries

HEADS, SHARED, SIZE = 4, 2, 8


class _Attention(nn.Module):
    """Attention as transformers writes it, optionally with a second reader of the copied keys."""

    def __init__(self, *, shared: int = SHARED, peek: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v = (
            nn.Linear(WIDTH, heads * SIZE) for heads in (HEADS, shared, shared)
        )
        self.shared, self.peek = shared, peek

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], -1, SIZE).transpose(1, 2)

    def _repeated(self, x: torch.Tensor) -> torch.Tensor:
        rows, heads, length, size = x.shape
        groups = HEADS // self.shared
        if groups == 1:
            return x
        expanded = x[:, :, None].expand(rows, heads, groups, length, size)
        return expanded.reshape(rows, heads * groups, length, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self._heads(self.q(x)), self._heads(self.k(x)), self._heads(self.v(x))
        k, v = self._repeated(k), self._repeated(v)
        weights = torch.softmax(q @ k.transpose(2, 3), -1)
        mixed = (weights @ v).transpose(1, 2).reshape(x.shape)
        return mixed + k.sum() if self.peek else mixed


def _rewritten(**options: Any) -> tuple[nn.Module, TrainingGraph]:
    model, graph = captured(_Attention(**options))
    return model, group_queries(bind_rows(cleanup(graph), 2))


@pytest.mark.parametrize("shared", [1, SHARED])
def test_shared_heads_are_not_copied(shared: int) -> None:
    model, graph = _rewritten(shared=shared)
    left = operators(graph.programs["forward"])
    assert left["aten.expand.default"] == 0
    assert left["aten.matmul.default"] == 2
    x = tokens(2)
    torch.testing.assert_close(
        interpret(graph, "forward", {"tokens": x})["logits"], model(x).logits
    )


def test_another_reader_keeps_its_copy() -> None:
    model, graph = _rewritten(peek=True)
    assert operators(graph.programs["forward"])["aten.expand.default"] == 1
    x = tokens(2)
    torch.testing.assert_close(
        interpret(graph, "forward", {"tokens": x})["logits"], model(x).logits
    )


def test_heads_of_their_own_are_left_alone() -> None:
    _, graph = captured(_Attention(shared=HEADS))
    bind_rows(cleanup(graph), 2)
    before = operators(graph.programs["forward"])
    assert operators(group_queries(graph).programs["forward"]) == before
