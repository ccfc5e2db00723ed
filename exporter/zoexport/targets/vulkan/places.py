"""Where tensors and weights of programs lie on a GPU.

The tensors of a program lie in one pool, those that are never needed at once in the same place; all programs share it.
Matrices that products read lie in windows: one for layers, which each layer's weights fill in turn, and one for the
head, whose weights stay. A window and the pool are each what every device can bind as one buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zoexport.core.errors import LoweringError
from zoexport.core.types import Value
from zoexport.targets.vulkan.calls import Calls, Tensor, Weight

MOST_BYTES = 1 << 27
"""maxStorageBufferRange of every device with Vulkan."""
LAYERS, HEAD = 0, 1
"""Windows."""
_ALIGNED_WORDS = 4
_ALIGNED_BYTES = 16


def place_tensors(calls: Calls) -> tuple[dict[Tensor, int], int]:
    """The word at which each tensor begins, and how many words there are.

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


def place_weights(
    programs: Sequence[Calls],
) -> tuple[dict[str, dict[str, tuple[int, int]]], list[int]]:
    """By program and input, the window that a weight lies in and the byte at which; and the bytes of each window.

    Programs of one layer, forward and backward and of all lengths, have their weights at the same places: what one has
    brought there serves the next.

    Raises:
        LoweringError: weights that no device could bind.
    """
    layouts: dict[str, dict[str, tuple[int, int]]] = {}
    sizes = [0, 0]
    ends: dict[str, int] = {}
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for calls in programs:
        program = calls.program
        part = program.called.removesuffix(".backward")
        window = HEAD if any(value.role == "label_tokens" for value in program.inputs) else LAYERS
        layout = layouts.setdefault(part, {})
        found[program.name] = {}
        for value in _stored(weight for call in calls.calls for weight in call.weights.values()):
            if value.name not in layout:
                at = ends.get(part, 0)
                layout[value.name] = window, at
                ends[part] = -(-(at + _bytes(value)) // _ALIGNED_BYTES) * _ALIGNED_BYTES
            found[program.name][value.name] = layout[value.name]
        sizes[window] = max(sizes[window], ends.get(part, 0))
        if sizes[window] > MOST_BYTES:
            raise _too_large(f"program {program.name}", f"weights of {sizes[window] >> 20} MB")
    return found, sizes


def stored_bytes(weights: Iterable[Weight]) -> int:
    """Of the matrices and of their scales."""
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
        fix="Choose weights=int4, a smaller batch or seq_len, or another target.",
    )
