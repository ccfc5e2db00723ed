"""check_stages lets through what says the same of shorter rows, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.graphs import WIDTH
from tests.support.splits import LENGTH, Layer, small
from zoexport.core.errors import ModelError
from zoexport.ir.lengths import FixedLength


class _Causal(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.cumsum(self.linear(x), dim=1)


class _WholeRow(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x).mean(dim=1, keepdim=True)


class _LastOnly(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x[:, LENGTH - 1])[:, None]


class _Flipped(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x).flip(1)


def test_causal_layers_pass_unchanged() -> None:
    _, before = small([_Causal(), _Causal()], "split_layers")
    _, graph = small([_Causal(), _Causal()], "check_stages")
    assert [str(p.module.graph) for p in graph.programs.values()] == [
        str(p.module.graph) for p in before.programs.values()
    ]
    assert graph.any_length


@pytest.mark.parametrize("layer", [_WholeRow, _LastOnly, _Flipped])
def test_another_meaning_at_another_length_is_refused(layer: type[nn.Module]) -> None:
    with pytest.raises(FixedLength):
        small([layer(), layer()], "check_stages")


def test_one_unlike_layer_among_others_is_found() -> None:
    with pytest.raises(FixedLength):
        small([_Causal(), _WholeRow(), _Causal()], "check_stages")


@pytest.mark.parametrize("layer", [_WholeRow, _LastOnly, _Flipped])
def test_layers_that_see_later_tokens_are_refused(layer: type[nn.Module]) -> None:
    with pytest.raises(ModelError, match="a token sees those after it"):
        small([_Causal(), layer()], "check_stages", any_length=False)


def test_causal_layers_pass_at_their_only_length() -> None:
    _, graph = small([_Causal()], "check_stages", any_length=False)
    assert graph.programs["layer.0"].outputs[0].shape[2] == WIDTH
