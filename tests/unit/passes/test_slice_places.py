"""slice_places: which indices become slices, that they say the same, and what is left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.graphs import captured, operators, tokens
from tests.support.splits import passed
from zoexport.core.graph import TrainingGraph
from zoexport.ir.graphs import arguments, aten, is_call
from zoexport.ir.interpret import interpret
from zoexport.passes.bind_rows import bind_rows
from zoexport.passes.fold_constants import fold_constants
from zoexport.passes.slice_places import slice_places

ROWS = 2


class _Picked(nn.Module):
    """Adds up what it picks of 8 heads, or of tokens, at these places."""

    def __init__(self, axis: int, places: list[int]) -> None:
        super().__init__()
        self.where = (*[slice(None)] * axis, places)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        picked = x.unflatten(2, (8, -1))[self.where]
        added: torch.Tensor = x + picked.square().flatten(1).sum(1)[:, None, None]
        return added


def picked(body: nn.Module) -> tuple[nn.Module, TrainingGraph]:
    model, graph = captured(body)
    graph = bind_rows(graph, ROWS)
    fold_constants(graph)
    assert operators(graph.programs["forward"])["aten.index.Tensor"] == 1
    return model, slice_places(graph)


def same(model: nn.Module, graph: TrainingGraph) -> None:
    x = tokens(ROWS)
    found = interpret(graph, "forward", {"tokens": x})["logits"]
    torch.testing.assert_close(found, model(x).logits, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("axis", "places", "sliced"),
    [
        (2, [-2], (2, -2, -1, 1)),
        (2, [-1], (2, -1, 2**63 - 1, 1)),
        (2, [3], (2, 3, 4, 1)),
        (2, [2, 3, 4], (2, 2, 5, 1)),
        (2, [1, 4, 7], (2, 1, 8, 3)),
        (2, [-5, -3, -1], (2, -5, 2**63 - 1, 2)),
        (1, [-1], (1, -1, 2**63 - 1, 1)),
    ],
)
def test_evenly_spaced_places_are_a_slice(
    axis: int, places: list[int], sliced: tuple[int, ...]
) -> None:
    model, graph = picked(_Picked(axis, places))
    program = graph.programs["forward"]
    assert operators(program)["aten.index.Tensor"] == 0
    (made,) = (node for node in program.module.graph.nodes if is_call(node, aten.slice))
    assert arguments(made)[1:] == sliced
    # Nothing reads the table of places any more.
    assert not [value.name for value in program.inputs if value.name.startswith("constant.")]
    same(model, graph)


@pytest.mark.parametrize("places", [[3, 3], [0, 1, 3], [4, 3], [-1, 0], [0, 2, 1]])
def test_other_places_are_left_alone(places: list[int]) -> None:
    model, graph = picked(_Picked(2, places))
    assert operators(graph.programs["forward"])["aten.index.Tensor"] == 1
    same(model, graph)


class _Chosen(nn.Module):
    """Places that inputs decide, and places of two axes."""

    def __init__(self, *, two: bool) -> None:
        super().__init__()
        self.two = two

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.two:
            picked = x[:, [1, 2], [0, 1]]
            return x + picked.sum(1)[:, None, None]
        place = (x.sum().reshape(1) > 0).long()
        return x + x[:, place]


@pytest.mark.parametrize("two", [False, True])
def test_what_is_no_constant_or_of_one_axis_is_left_alone(two: bool) -> None:
    model, graph = picked(_Chosen(two=two))
    assert operators(graph.programs["forward"])["aten.index.Tensor"] == 1
    same(model, graph)


@pytest.mark.parametrize("new", [False, True])
def test_falcons_keys_and_values_are_slices(new: bool) -> None:
    changes = {"num_kv_heads": 2, "new_decoder_architecture": True} if new else {}
    graph = passed("falcon", "split_layers", **changes)
    (layer,) = (one for name, one in graph.programs.items() if name.startswith("layer"))
    assert operators(layer)["aten.index.Tensor"] == 0
    places = [arguments(node)[1:] for node in layer.module.graph.nodes if is_call(node, aten.slice)]
    axis = 3 if new else 2
    assert {(axis, -2, -1, 1), (axis, -1, 2**63 - 1, 1)} <= {*places}
