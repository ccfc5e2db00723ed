"""Placement of tensors and weights of programs in GPU memory.

Tensors lie in one pool that all programs share; tensors with disjoint lifetimes may share
memory. Matrices that products read lie in windows: one for layers, which each layer's weights fill
in turn, and one for the head, whose weights stay. Any device can bind a window or the pool as one
buffer. Larger weights have several windows, and a larger matrix has some of its rows in each.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from zoexport.core.errors import LoweringError
from zoexport.core.graph import Value
from zoexport.targets.vulkan.calls import Calls, Tensor, Weight

MOST_BYTES = 1 << 27
"""maxStorageBufferRange of every device with Vulkan."""
WINDOW_BYTES = MOST_BYTES
"""Of a window, at most."""
MOST_WINDOWS = 64
"""That a file may have."""
_ALIGNED_WORDS = 4
_ALIGNED_BYTES = 16
_SUMMED_ROWS = (16384, 2048)
"""Sums over more rows are made in parts of so many (program_file.cpp, product.comp): of a matrix that is cut, the rows
in a window are a multiple of the first of these that they reach, so that its sums have the same parts."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Bytes of an input, ``size`` from the byte ``begin`` on, that are copied to the byte ``at`` of a window."""

    window: int
    at: int
    begin: int
    size: int


Placed = Mapping[str, tuple[Part, ...]]
"""By input, its parts in order: one, or of what is too large for a window several."""


def place_tensors(calls: Calls) -> tuple[dict[Tensor, int], int]:
    """Return the word at which each tensor begins, and how many words there are.

    Inputs are there before the first call and as long as they are read, outputs until the end.

    Raises:
        LoweringError: more than a device can bind.
    """
    begins: dict[Tensor, int] = {}
    ends: dict[Tensor, int] = {}
    for number, call in enumerate(calls.calls):
        for tensor in call.read():
            begins.setdefault(tensor, -1)
            ends[tensor] = number
        for tensor in call.written():
            begins.setdefault(tensor, number)
            ends.setdefault(tensor, number)
    for tensor in [*(gather.to for gather in calls.gathers), *calls.outputs]:
        begins.setdefault(tensor, -1)
        ends.setdefault(tensor, -1)
    for tensor in calls.outputs:
        ends[tensor] = len(calls.calls)
    places: dict[Tensor, int] = {}
    total = 0
    for tensor in sorted(begins, key=lambda one: -calls.words[one]):
        taken = sorted(
            (places[other], places[other] + calls.words[other])
            for other in places
            if begins[other] <= ends[tensor] and begins[tensor] <= ends[other]
        )
        at = 0
        for begin, end in taken:
            if at + calls.words[tensor] <= begin:
                break
            at = max(at, -(-end // _ALIGNED_WORDS) * _ALIGNED_WORDS)
        places[tensor] = at
        total = max(total, at + calls.words[tensor])
    if 4 * total > MOST_BYTES:
        raise _too_large(f"program {calls.program.name}", f"tensors of {4 * total >> 20} MB")
    return places, total


def place_weights(programs: Sequence[Calls]) -> tuple[dict[str, Placed], list[int]]:
    """By program, where the weights of its products lie; and the bytes of each window.

    Programs of one layer, forward and backward and of all lengths, have their weights at the same places: what one has
    brought there serves the next. Windows of layers come first, then those of the head: one of each, or more.

    Raises:
        LoweringError: a row that no device could bind, or more windows than a file may have.
    """
    placed: dict[str, Placed] = {}
    sizes: list[int] = []
    for of_head in (False, True):
        own = [calls for calls in programs if _is_head(calls) == of_head]
        sizes += _place(own, len(sizes), placed)
    if len(sizes) > MOST_WINDOWS:
        raise LoweringError(
            "weights",
            found=f"{sum(sizes) >> 20} MB of a layer and of the head, in {len(sizes)} windows",
            expected=f"at most {MOST_WINDOWS} windows of {WINDOW_BYTES >> 20} MB",
            fix="Choose weights=int4 or int8, or another target.",
        )
    return placed, sizes


def _is_head(calls: Calls) -> bool:
    return any(value.role == "label_tokens" for value in calls.program.inputs)


def _place(programs: Iterable[Calls], first: int, placed: dict[str, Placed]) -> list[int]:
    """Weights of layers, or of the head, to windows from ``first`` on, whose sizes this gives."""
    layouts: dict[str, _Layout] = {}
    for calls in programs:
        part = calls.program.called.removesuffix(".backward")
        layout = layouts.setdefault(part, _Layout(first))
        own: dict[str, tuple[Part, ...]] = {}
        for weight in (weight for call in calls.calls for weight in call.weights.values()):
            layout.place(weight, calls.program.name)
            own |= {value.name: layout.parts[value.name] for value in _stored([weight])}
        placed[calls.program.name] = own
    ends = itertools.zip_longest(*(layout.ends for layout in layouts.values()), fillvalue=0)
    return [max(sizes) for sizes in ends] or [0]


class _Layout:
    """The windows that weights of one layer fill, from the window ``first`` on, or those of the head."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.ends: list[int] = []
        self.parts: dict[str, tuple[Part, ...]] = {}

    def place(self, weight: Weight, program: str) -> None:
        """Place a weight if it has no place yet. Values and scales of a row lie in one window."""
        if weight.values.name in self.parts:
            return
        stored = list(_stored([weight]))
        of_row = {value.name: _bytes(value) // weight.rows for value in stored}
        parts: dict[str, list[Part]] = {name: [] for name in of_row}
        for begin, end in itertools.pairwise(_cuts(weight.rows, of_row.values(), program)):
            taken = [_aligned(size * (end - begin)) for size in of_row.values()]
            window, at = self._room(sum(taken))
            for (name, size), room in zip(of_row.items(), taken, strict=True):
                parts[name].append(
                    Part(self.first + window, at, size * begin, size * (end - begin))
                )
                at += room
        self.parts |= {name: tuple(found) for name, found in parts.items()}

    def _room(self, size: int) -> tuple[int, int]:
        """Return the first window with ``size`` bytes left, and the offset in it."""
        window = 0
        while window < len(self.ends) and self.ends[window] + size > WINDOW_BYTES:
            window += 1
        if window == len(self.ends):
            self.ends.append(0)
        at = self.ends[window]
        self.ends[window] += size
        return window, at


def _cuts(rows: int, of_row: Iterable[int], program: str) -> Iterator[int]:
    """Yield the first rows of a matrix's parts, then its end; ``of_row``: bytes per row."""
    sizes = list(of_row)

    def fits(count: int) -> bool:
        return sum(_aligned(size * count) for size in sizes) <= WINDOW_BYTES

    at_once = rows
    if not fits(rows):
        at_once = WINDOW_BYTES // sum(sizes)
        while not fits(at_once):
            at_once -= 1
        at_once -= at_once % next((whole for whole in _SUMMED_ROWS if whole <= at_once), 1)
    if at_once < 1:
        raise _too_large(f"program {program}", f"a row of {sum(sizes) >> 20} MB")
    yield from range(0, rows, at_once)
    yield rows


def filled(placed: Placed, windows: int) -> tuple[int, ...]:
    """Return the bytes that the weights of a program fill of each of so many windows."""
    ends = [0] * windows
    for part in (part for parts in placed.values() for part in parts):
        ends[part.window] = max(ends[part.window], part.at + _aligned(part.size))
    return tuple(ends)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES


def stored_bytes(weights: Iterable[Weight]) -> int:
    """Return the bytes of the matrices and their scales."""
    return sum(map(_bytes, _stored(weights)))


def _stored(weights: Iterable[Weight]) -> Iterable[Value]:
    for weight in weights:
        yield weight.values
        if weight.scales is not None:
            yield weight.scales


_ELEMENT = {"float32": 4, "bfloat16": 2, "uint8": 1, "int8": 1}


def _bytes(value: Value) -> int:
    count = _ELEMENT[value.dtype]
    for size in value.sizes():
        count *= size
    return count


def _too_large(where: str, found: str) -> LoweringError:
    return LoweringError(
        where,
        found=f"{found} at once",
        expected=f"at most {MOST_BYTES >> 20} MB, which is what every device with Vulkan can bind as one buffer",
        fix="Choose weights=int4, a smaller batch or max_length, or another target.",
    )
