"""Products in pieces, carried out as the file's table in docs/targets.md says, against the whole product."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from zoexport.core.graph import Value
from zoexport.targets.vulkan.calls import Call, Weight
from zoexport.targets.vulkan.pieces import Piece, pieces_of

ROWS, COLUMNS, DEPTH = 5, 7, 9
PARTS = {5: (2, 1, 2), 7: (3, 4), 9: (4, 4, 1)}
"""By its rows, those of a matrix in each of its parts."""


def matrix(values: torch.Tensor, at: int, rows: int, width: int, pitch: int) -> torch.Tensor:
    """A view of rows of a flat tensor."""
    return values.as_strided((rows, width), (pitch, 1), at)


def carry_out(
    piece: Piece, tensors: dict[str, torch.Tensor], weight: tuple[str, torch.Tensor]
) -> None:
    """A piece over flat ``tensors`` by the call's keys, and the rows of the weight that it is given."""
    call, sizes = piece.call, piece.call.sizes
    stored = {
        "a": (sizes["depth"], sizes["rows"]) if sizes["transposed"][0] else (sizes["rows"], sizes["depth"]),
        "b": (sizes["columns"], sizes["depth"]) if sizes["transposed"][1] else (sizes["depth"], sizes["columns"]),
        "out": (sizes["rows"], sizes["columns"]),
        "bias": (1, sizes["columns"]),
    }  # fmt: skip
    places = {**call.reads, **call.writes}

    def operand(key: str, like: str) -> torch.Tensor:
        (name, _) = places[key]  # type: ignore[misc]
        rows, width = stored[like]
        pitch = sizes.get(f"{like}_pitch", width)
        return matrix(tensors[str(name)], piece.moved.get(key, 0), rows, width, pitch)

    key, values = weight
    assert tuple(values.shape) == stored[key]
    other = "a" if key == "b" else "b"
    a, b = (one[1] for one in sorted([(key, values), (other, operand(other, other))]))
    result = (a.T if sizes["transposed"][0] else a) @ (b.T if sizes["transposed"][1] else b)
    for more in ("add", "bias"):
        if places[more] is not None:
            result = result + operand(more, "out" if more == "add" else "bias")
    operand("out", "out").copy_(result)


@pytest.mark.parametrize(
    ("key", "turned_a", "turned_b", "adds"),
    list(itertools.product("ab", (False, True), (False, True), (False, True))),
)
def test_pieces_are_the_product(key: str, turned_a: bool, turned_b: bool, adds: bool) -> None:
    torch.manual_seed(1)
    a = torch.randn(*((DEPTH, ROWS) if turned_a else (ROWS, DEPTH)), dtype=torch.float64)
    b = torch.randn(*((COLUMNS, DEPTH) if turned_b else (DEPTH, COLUMNS)), dtype=torch.float64)
    added, bias = torch.randn(ROWS, COLUMNS).double(), torch.randn(COLUMNS).double()
    expected = (a.T if turned_a else a) @ (b.T if turned_b else b)
    expected = expected + added + bias if adds else expected
    stored, other = (a, b) if key == "a" else (b, a)
    sizes = {
        "batch": 1, "rows": ROWS, "columns": COLUMNS, "depth": DEPTH,
        "transposed": [turned_a, turned_b],
    }  # fmt: skip
    reads: dict[str, Any] = {
        "b" if key == "a" else "a": ("other", 0),
        "add": ("added", 0) if adds else None,
        "bias": ("bias", 0) if adds else None,
    }
    value = Value("weight", "weight", "float32", tuple(stored.shape))
    weights = {key: Weight("fp32", stored.shape[0], value)}
    call = Call("product", reads, {"out": ("out", 0)}, sizes, weights)  # type: ignore[dict-item]
    tensors = {
        "other": other.flatten(), "added": added.flatten(), "bias": bias,
        "out": torch.full((ROWS * COLUMNS,), torch.nan, dtype=torch.float64),
    }  # fmt: skip
    rows = PARTS[stored.shape[0]]
    pieces = list(pieces_of(call, rows))
    assert [piece.part for piece in pieces] == list(range(len(rows)))
    for piece, part in zip(pieces, stored.split(rows), strict=True):
        carry_out(piece, tensors, (key, part))
    torch.testing.assert_close(tensors["out"].view(ROWS, COLUMNS), expected)


def test_a_matrix_in_one_window_is_one_product() -> None:
    value = Value("weight", "weight", "float32", (4, 8))
    sizes = {"batch": 1, "rows": 2, "columns": 4, "depth": 8, "transposed": [False, True]}
    call = Call("product", {}, {}, sizes, {"b": Weight("fp32", 4, value)})
    assert list(pieces_of(call, [4])) == [Piece(call)]
