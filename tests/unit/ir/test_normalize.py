"""The normal form of a captured model: the same values, in operators that the targets have rules for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from tests.support.graphs import captured, tokens
from zoexport.ir.graphs import aten, is_call
from zoexport.ir.interpret import interpret
from zoexport.ir.normalize import RARE
from zoexport.passes.cleanup import cleanup
from zoexport.targets.coreml.elementwise import elementwise as coreml_rules
from zoexport.targets.coreml.shapes import shapes as coreml_shapes
from zoexport.targets.mlx.operators import elementwise as mlx_rules
from zoexport.targets.mlx.operators import shapes as mlx_shapes


class Wide(nn.Module):
    """An activation of values far enough from zero to reach all its branches."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(30 * x)


# A model's configuration may name any that transformers has.
@pytest.mark.parametrize("name", sorted(ACT2FN))
def test_every_activation_has_rules_on_mlx_and_core_ml(name: str) -> None:
    model, graph = captured(Wide(ACT2FN[name]))
    with torch.no_grad():
        expected = model(tokens(2)).logits
    found = interpret(graph, "forward", {"tokens": tokens(2)})["logits"]
    torch.testing.assert_close(found, expected)
    cleanup(graph)
    used = {
        node.target.overloadpacket
        for node in graph.programs["forward"].module.graph.nodes
        if node.op == "call_function"
    }
    elsewhere = {aten.linear, aten.embedding}
    assert used - elsewhere <= {**mlx_rules(), **mlx_shapes()}.keys()
    assert used - elsewhere <= {**coreml_rules(), **coreml_shapes()}.keys()


_CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "add_": lambda x: (2 * x).add_(x, alpha=3),
    "clip": lambda x: torch.clip(x, -0.5, 0.7),
    "clip, below": lambda x: torch.clip(x, min=-0.5),
    "clip, above": lambda x: torch.clip(x, max=0.5),
    "clip by tensors": lambda x: torch.clip(x, x.mean(), x.amax(1, keepdim=True)),
    "copy": lambda x: torch.ops.aten.copy(torch.zeros_like(x), x[:, :1].double()) + x,
    "div_": lambda x: (2 * x).div_(1 + x * x),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh": lambda x: F.hardtanh(x, -2.0, 1.5),
    "index_put": lambda x: torch.index_put(x, [x > 0], torch.tensor(-1.0)),
    "leaky relu": lambda x: F.leaky_relu(x, 0.2),
    "logical_and_": lambda x: (x > 0).logical_and_(x < 9) * x,
    "masked_fill_": lambda x: (2 * x).masked_fill_(x > 0, -1.0),
    "max": lambda x: torch.max(x, x.flip(1)),
    "min": lambda x: torch.min(x, x.flip(1)),
    "mish": F.mish,
    "mul_": lambda x: (x > 0).to(torch.float16).mul_(x / 3).float(),
    "pad": lambda x: F.pad(torch.cat([x, x[..., :2]], -1), (-1, -1)),
    "constant_pad_nd": lambda x: torch.ops.aten.constant_pad_nd(2 * x, [0, 0, -1, 0])[:, :1] + x,
    "prelu": lambda x: F.prelu(x, torch.full((1,), 0.3)),
    "prelu of channels": lambda x: F.prelu(x, torch.linspace(0.1, 0.3, x.shape[1])),
    "relu6": F.relu6,
    "square": torch.square,
    "vector norm": lambda x: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "sub_": lambda x: (2 * x).sub_(3),
}


@pytest.mark.parametrize("name", _CALLS)
def test_a_rare_operator_keeps_its_values(name: str) -> None:
    model, graph = captured(Wide(_CALLS[name]))
    with torch.no_grad():
        expected = model(tokens(3)).logits
    nodes = graph.programs["forward"].module.graph.nodes
    assert not [node for node in nodes if is_call(node, *RARE)]
    found = interpret(graph, "forward", {"tokens": tokens(3)})["logits"]
    torch.testing.assert_close(found, expected)


def test_a_padding_that_also_cuts_keeps_its_values() -> None:
    model, graph = captured(Wide(lambda x: F.pad(x, (2, -2, -1, 1), value=0.5)))
    with torch.no_grad():
        expected = model(tokens(3)).logits
    found = interpret(graph, "forward", {"tokens": tokens(3)})["logits"]
    torch.testing.assert_close(found, expected)
    nodes = graph.programs["forward"].module.graph.nodes
    assert [node.args[1] for node in nodes if is_call(node, aten.constant_pad_nd)] == [[2, 0, 0, 1]]


def test_every_rare_operator_is_tried() -> None:
    graphs = (torch.export.export(Wide(call), (torch.rand(2, 6, 4),)) for call in _CALLS.values())
    seen = [node for exported in graphs for node in exported.graph.nodes]
    unseen = [rare for rare in RARE if not any(is_call(node, rare) for node in seen)]
    assert unseen == []


def test_writes_into_read_values_become_functional() -> None:
    def call(x: Tensor) -> Tensor:
        whole = 2 * x
        part = whole[:, 1:]
        whole.mul_(3)
        return torch.cat([whole[:, :1], part], 1)

    model, graph = captured(Wide(call))
    with torch.no_grad():
        expected = model(tokens(3)).logits
    found = interpret(graph, "forward", {"tokens": tokens(3)})["logits"]
    torch.testing.assert_close(found, expected)
    nodes = graph.programs["forward"].module.graph.nodes
    calls = [node.target for node in nodes if isinstance(node.target, torch._ops.OpOverload)]
    assert not any(target._schema.is_mutable for target in calls)


def test_memory_is_filled() -> None:
    def call(x: Tensor) -> Tensor:
        made = x.new_empty(x.shape)
        made[:, :3] = x[:, :3]
        made[:, 3:] = 2
        return made

    _, graph = captured(Wide(call))
    nodes = graph.programs["forward"].module.graph.nodes
    assert not [node for node in nodes if "empty" in str(node.target)]
