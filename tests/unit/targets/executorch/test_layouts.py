"""Layouts: which calls they are, which rows they move, and the strides of chains of them, against torch's own views."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.rows import last, program
from zoexport.ir.graphs import aten
from zoexport.targets.executorch.layouts import (
    Leaf,
    RowMove,
    holds_whole,
    is_layout,
    permutation,
    resolved,
    row_move,
    strided,
)

X = torch.arange(2.0 * 3 * 4).view(2, 3, 4)
Function = Callable[[torch.Tensor], torch.Tensor]

LAYOUTS: dict[str, Function] = {
    "view": lambda x: aten.view(x, [6, 4]),
    "reshape": lambda x: aten.view(x, [2, 12]),
    "permute": lambda x: aten.permute(x, [1, 0, 2]),
    "transpose": lambda x: aten.transpose(x, 1, 2),
    "unsqueeze": lambda x: aten.unsqueeze(x, 1),
    "squeeze": lambda x: aten.squeeze(aten.unsqueeze(x, 1), 1),
    "expand": lambda x: aten.expand(aten.unsqueeze(x, 2), [2, 3, 5, 4]),
    "slice": lambda x: aten.slice(x, 1, 1, 3),
    "slice from the end": lambda x: aten.slice(x, 2, -2),
    "clone": lambda x: aten.clone(x),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_strides_can_say_is_the_view_that_torch_makes(name: str) -> None:
    node = last(program(LAYOUTS[name], X))
    assert is_layout(node)
    base, chain = resolved(node)
    assert base.op == "placeholder" and chain[-1] is node
    view = strided(X.shape, chain, ())
    expected = LAYOUTS[name](X)
    read = X.as_strided(view.shape, view.stride(), int(view.storage_offset()))
    assert torch.equal(read, expected)
    assert Leaf(base, tuple(chain), ()).view().stride() == view.stride()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: aten.slice(x, 1, 0, 3, 2),  # a step
        lambda x: aten._to_copy(x, dtype=torch.float64),
        lambda x: aten.mul(x, 2.0),
        lambda x: aten.cat([x, x], 0),
    ],
)
def test_what_is_no_layout(function: Function) -> None:
    assert not is_layout(last(program(function, X)))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: aten.permute(x, [1, 0, 2]), RowMove("permute", (1, 0))),
        (lambda x: aten.permute(x, [-2, 0, -1]), RowMove("permute", (1, 0))),
        (lambda x: aten.transpose(x, 0, 1), RowMove("permute", (1, 0))),
        (lambda x: aten.view(x, [6, 4]), RowMove("view", (6,))),
        (lambda x: aten.unsqueeze(x, 0), RowMove("view", (1, 2, 3))),
        (lambda x: aten.expand(x, [5, 2, 3, 4]), RowMove("expand", (5, 2, 3))),
        (lambda x: aten.slice(x, 1, 1, 3), RowMove("narrow", (1, 1, 2))),
        (lambda x: aten.slice(x, 1, -2), RowMove("narrow", (1, 1, 2))),
        (lambda x: aten.clone(x), RowMove("view", (2, 3))),
    ],
)
def test_layouts_that_move_whole_rows(function: Function, expected: RowMove) -> None:
    node = last(program(function, X))
    found = row_move(node)
    assert found == expected
    assert torch.equal(expected.apply(X), function(X))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: aten.transpose(x, 1, 2),
        lambda x: aten.view(x, [2, 12]),
        lambda x: aten.slice(x, 2, 0, 2),
        lambda x: aten.expand(aten.unsqueeze(x, 3), [2, 3, 4, 5]),
    ],
)
def test_layouts_that_change_rows(function: Function) -> None:
    node = last(program(function, X))
    assert is_layout(node) and row_move(node) is None


def test_permutations() -> None:
    assert permutation(last(program(lambda x: aten.permute(x, [2, 0, 1]), X))) == (2, 0, 1)
    assert permutation(last(program(lambda x: aten.transpose(x, -1, 0), X))) == (2, 1, 0)
    assert permutation(last(program(lambda x: aten.t(x), X[0]))) == (1, 0)


def test_moves_of_rows_after_layouts() -> None:
    """Heads of a projection: (rows, length, heads * size) read as (heads, rows, length, size)."""
    node = last(program(lambda x: aten.view(x, [2, 3, 2, 2]), X))
    moves = (RowMove("permute", (2, 0, 1)), RowMove("narrow", (0, 1, 1)))
    view = strided((2, 3, 4), [node], moves)
    read = X.as_strided(view.shape, view.stride(), int(view.storage_offset()))
    assert torch.equal(read, X.view(2, 3, 2, 2).permute(2, 0, 1, 3)[1:2])


def test_a_chain_is_cut_where_strides_end() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        turned = aten.clone(aten.permute(x, [1, 0, 2]), memory_format=torch.contiguous_format)
        return aten.slice(aten.view(turned, [6, 4]), 0, 1, 3)

    node = last(program(function, X))
    base, chain = resolved(node)
    # Rows of the permuted value do not lie evenly in X: what can be read is the copy.
    assert base.target == aten.clone.default
    assert [str(layout.target) for layout in chain] == ["aten.view.default", "aten.slice.Tensor"]
    with pytest.raises(RuntimeError):
        RowMove("view", (6,)).apply(X.permute(1, 0, 2))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: aten.view(x, [4, 6]), True),
        (lambda x: aten.clone(x), True),
        (lambda x: aten.permute(aten.permute(x, [1, 0, 2]), [1, 0, 2]), True),
        (lambda x: aten.permute(x, [1, 0, 2]), False),
        (lambda x: aten.slice(x, 0, 0, 1), False),
        (lambda x: aten.expand(aten.unsqueeze(x, 0), [2, 2, 3, 4]), False),
    ],
)
def test_what_holds_a_value_whole(function: Function, expected: bool) -> None:
    assert holds_whole(last(program(function, X))) is expected
