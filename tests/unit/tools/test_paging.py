"""What a step reads from the disk: weights that the system dropped before they were needed again."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from zoexport.tools.estimate import StageWeights, bytes_from_disk

MB = 1 << 20


def _layers(count: int, size: int) -> list[StageWeights]:
    return [((f"layer.{layer}", size),) for layer in range(count)]


@pytest.mark.parametrize("room", [40 * MB, 40 * MB + 1, 100 * MB])
def test_what_fits_is_read_once(room: int) -> None:
    there_and_back = [*range(10), *reversed(range(10))]
    assert bytes_from_disk(there_and_back, _layers(10, 4 * MB), room) == 0


def test_small_tensors_take_their_own_size() -> None:
    layers: list[StageWeights] = [
        tuple((f"layer.{layer}.{n}", 40_000) for n in range(20)) for layer in range(30)
    ]
    assert bytes_from_disk([*range(30)] * 2, layers, 30 * 20 * 40_000) == 0
    assert bytes_from_disk([*range(30)] * 2, layers, 29 * 20 * 40_000) > 0


def test_there_and_back_reads_what_is_beyond_memory() -> None:
    """Of ten layers in the room of four, six are read on each way."""
    there_and_back = [*range(10), *reversed(range(10))]
    for room in (16 * MB, 16 * MB + 1000):
        found = bytes_from_disk(there_and_back, _layers(10, 4 * MB), room)
        assert found == pytest.approx(2 * 6 * 4 * MB, abs=2 * 4 * MB)


def test_forward_alone_reads_everything_once_a_layer_does_not_fit() -> None:
    layers = _layers(10, 4 * MB)
    assert bytes_from_disk(range(10), layers, 39 * MB) == 40 * MB
    assert (
        bytes_from_disk([stage for stage in range(10) for _ in range(5)], layers, 39 * MB)
        == 40 * MB
    )
    assert bytes_from_disk([*range(10)] * 5, layers, 39 * MB) == 5 * 40 * MB


def test_weights_that_stages_share_are_read_once() -> None:
    shared = [(("table", 8 * MB),), (("layer", 20 * MB),), (("table", 8 * MB),)]
    assert bytes_from_disk([0, 2, 0], shared, 9 * MB) == 0
    assert bytes_from_disk([0, 1, 2], shared, 28 * MB) == 0
    assert (
        bytes_from_disk([0, 1, 2], shared, 20 * MB) == 28 * MB
    )  # the table was used last, and first


def _least_recently_used(pages: Sequence[tuple[str, int]], room: int) -> int:
    kept: list[tuple[str, int]] = []
    missed = 0
    for page in pages:
        if page in kept:
            kept.remove(page)
        else:
            missed += MB
        kept.append(page)
        del kept[: max(0, len(kept) - room)]
    return missed


@pytest.mark.parametrize("seed", range(20))
def test_any_order_is_that_of_a_list_of_pages(seed: int) -> None:
    drawn = random.Random(seed)
    weights = [
        tuple((f"{stage}.{n}", drawn.randint(1, 5) * MB) for n in range(drawn.randint(0, 3)))
        for stage in range(7)
    ]
    order = [drawn.randrange(7) for _ in range(30)]
    room = drawn.randint(1, 30)
    pages = [
        (name, page)
        for stage in order
        for name, size in weights[stage]
        for page in range(size // MB)
    ]
    expected = _least_recently_used(pages * 2, room) - _least_recently_used(pages, room)
    assert bytes_from_disk(order, weights, room * MB) == expected
