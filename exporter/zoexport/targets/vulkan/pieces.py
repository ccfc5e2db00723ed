"""Split products whose matrix is too large for a window of weights into products over its parts.

The forward product ``x W^T`` of a head whose 262,144 rows lie in windows of 196,608 and 65,536 is two products, which
write columns 0 to 196,607 and the rest of the logits; the gradient ``dy W`` is two, over these
columns of ``dy``; the second product adds to the result of the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zoexport.targets.vulkan.calls import Call


@dataclasses.dataclass(frozen=True)
class Piece:
    """Call with one part of a weight.

    Attributes:
        call: the call as in the file, except for the offsets of operands.
        part: the number of the weight's part.
        moved: offsets of operands in elements, by the file's key.
    """

    call: Call
    part: int = 0
    moved: Mapping[str, int] = dataclasses.field(default_factory=dict)


def pieces_of(call: Call, rows: Sequence[int]) -> Iterator[Piece]:
    """Split a product into its weight's parts of ``rows`` rows; one part is the call itself."""
    if len(rows) == 1:
        yield Piece(call)
        return
    first = 0
    for part, count in enumerate(rows):
        yield _piece(call, part, first, count)
        first += count


def _piece(call: Call, part: int, first: int, count: int) -> Piece:
    (key,) = call.weights
    turned = dict(zip(("a", "b"), call.sizes["transposed"], strict=True))
    columns, depth = call.sizes["columns"], call.sizes["depth"]
    sizes: dict[str, Any] = dict(call.sizes)
    reads = dict(call.reads)
    moved: dict[str, int] = {}
    if key == "b" and turned["b"]:
        sizes |= {"columns": count, "out_pitch": columns}
        moved |= {"out": first, "add": first, "bias": first}
    elif key == "a" and not turned["a"]:
        sizes["rows"] = count
        moved |= {"out": first * columns, "add": first * columns}
    else:
        sizes["depth"] = count
        other = "a" if key == "b" else "b"
        across = turned[other] if other == "a" else not turned[other]
        if across:
            moved[other] = first * call.sizes["rows" if other == "a" else "columns"]
        else:
            sizes[f"{other}_pitch"] = depth
            moved[other] = first
        if part:
            reads |= {"add": call.writes["out"], "bias": None}
    return Piece(dataclasses.replace(call, sizes=sizes, reads=reads), part, moved)
