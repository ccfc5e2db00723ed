"""cleanup removes what does nothing and nothing else."""

from __future__ import annotations

import torch
from torch import nn

from tests.support.graphs import captured, operators, tokens
from zoexport.ir.interpret import interpret
from zoexport.passes.cleanup import cleanup


class _Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x.to(torch.float64).to(torch.float32)
        dropped = nn.functional.dropout(kept.to(torch.float32), 0.1, self.training)
        whole = dropped[:, :, :].contiguous().view(x.shape).clone()
        whole = whole[:, -whole.shape[1] :]
        return whole + whole[:, :1]


def test_only_no_ops_go() -> None:
    model, graph = captured(_Noise())
    cleanup(graph)
    program = graph.programs["forward"]
    left = operators(program)
    assert left["aten.to.dtype"] == 2  # there and back is rounding, not a no-op
    assert left["aten.slice.Tensor"] == 1  # the one that cuts
    for name in ("dropout", "contiguous", "clone", "view", "reshape", "_assert_tensor_metadata"):
        assert not [operator for operator in left if f"aten.{name}." in operator], name
    x = tokens(3)
    torch.testing.assert_close(
        interpret(graph, "forward", {"tokens": x})["logits"], model(x).logits, rtol=0, atol=0
    )


class _Shared(nn.Module):
    """A key of one head for two heads, as Falcon's newer decoder writes it, and a broadcast that does nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = x[:, :, None, :4]
        both = torch.broadcast_to(one, (x.shape[0], x.shape[1], 2, 4)).sum(2)
        return x + torch.broadcast_to(both, both.shape).repeat(1, 1, x.shape[2] // 4)


def test_a_broadcast_is_an_expand() -> None:
    model, graph = captured(_Shared())
    before = operators(graph.programs["forward"])
    assert before["aten.broadcast_to.default"] == 2
    cleanup(graph)
    left = operators(graph.programs["forward"])
    assert left["aten.expand.default"] == 1 and not left["aten.broadcast_to.default"]
    x = tokens(3)
    torch.testing.assert_close(
        interpret(graph, "forward", {"tokens": x})["logits"], model(x).logits, rtol=0, atol=0
    )
