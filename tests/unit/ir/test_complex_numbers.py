"""Rotary embeddings by complex numbers: the captured program has the same values and no complex ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.support.graphs import SEQ, WIDTH, captured, tokens
from zoexport.core.errors import VerifyError
from zoexport.ir.interpret import interpret


class Rotary(nn.Module):
    """Rotate pairs of channels as Llama 4 and DeepSeek V2 do."""

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(SEQ)[None, :, None] / (1.0 + torch.arange(WIDTH // 4))
        turns = (torch.polar(torch.ones_like(angles), angles) * 0.5).to(x.device)
        parts = torch.view_as_complex(x.reshape(x.shape[0], SEQ, 2, -1, 2))
        return torch.view_as_real(parts * turns.unsqueeze(-2)).flatten(2)


class Conjugate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        parts = torch.view_as_complex(x.reshape(*x.shape[:2], -1, 2))
        return torch.view_as_real(parts.conj().resolve_conj()).flatten(2)


def test_complex_rotary_becomes_real_pairs() -> None:
    model, graph = captured(Rotary())
    nodes = graph.programs["forward"].module.graph.nodes
    values = [node.meta["val"] for node in nodes if isinstance(node.meta.get("val"), Tensor)]
    assert not any(value.is_complex() for value in values)
    with torch.no_grad():
        expected = model(tokens(2)).logits
    torch.testing.assert_close(
        interpret(graph, "forward", {"tokens": tokens(2)})["logits"], expected
    )


def test_other_complex_operators_are_refused() -> None:
    with pytest.raises(VerifyError, match="complex numbers"):
        captured(Conjugate())
