"""Segments: which list of modules is the layers, and where a call belongs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.graphs import WIDTH, captured
from tests.support.splits import Layer
from zoexport.core.errors import VerifyError
from zoexport.ir.graphs import is_call, module_path
from zoexport.ir.segments import layer_of, layer_stack, segments
from zoexport.passes.cleanup import cleanup


class _TwoLists(nn.Module):
    """Two layers of three calls, and a list that is called less."""

    def __init__(self) -> None:
        super().__init__()
        self.few = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.few[0](x)
        gate = torch.sigmoid(x)
        for layer in self.layers:
            x = layer(x)
        return x * gate


def _program() -> Any:
    return cleanup(captured(_TwoLists())[1]).programs["forward"]


def test_the_layers_are_the_list_with_most_calls() -> None:
    assert layer_stack(_program()) == "body.layers"


def test_calls_by_segment() -> None:
    found = segments(_program(), "body.layers")
    names = [[str(node.target).split(".")[1] for node in part] for part in found]
    assert names == [
        ["embedding", "linear", "sigmoid"],
        ["linear", "tanh", "add"],
        ["linear", "tanh", "add"],
        ["mul", "linear"],
    ]
    assert [
        {module_path(node) for node in part if "linear" in str(node.target)} for part in found
    ] == [
        {"body.few.0"},
        {"body.layers.0.linear"},
        {"body.layers.1.linear"},
        {"head"},
    ]


def test_what_no_token_reaches_is_in_no_segment() -> None:
    class Tabled(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * torch.arange(WIDTH).cos()

    program = captured(nn.Sequential(Tabled(), Tabled()))[1].programs["forward"]
    inside = [node for part in segments(program, "body") for node in part]
    targets = {str(node.target) for node in inside}
    assert "aten.cos.default" not in targets and "aten.mul.Tensor" in targets


def test_the_layer_of_a_call() -> None:
    program = _program()
    tanh = [node for node in program.module.graph.nodes if is_call(node, torch.ops.aten.tanh)]
    assert [layer_of(node, "body.layers") for node in tanh] == ["0", "1"]
    assert [layer_of(node, "body.layer") for node in tanh] == [None, None]
    assert [layer_of(node, "body.few") for node in tanh] == [None, None]


def test_a_model_without_a_list_is_refused() -> None:
    program = captured(nn.Linear(WIDTH, WIDTH))[1].programs["forward"]
    with pytest.raises(VerifyError, match="found no module of a list") as error:
        layer_stack(program)
    assert error.value.where == "program forward"


def test_a_layer_that_reads_a_later_one_is_refused() -> None:
    class Loops(_TwoLists):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in (*self.layers, self.layers[0]):
                x = layer(x)
            return x

    program = captured(Loops())[1].programs["forward"]
    with pytest.raises(VerifyError, match="a value of layer 2 in layer 1"):
        segments(program, "body.layers")
