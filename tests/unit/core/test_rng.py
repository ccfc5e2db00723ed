"""The noise specification in numpy, against its golden vectors and against statistics."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from zoexport.core import rng

GOLDEN = json.loads(
    (Path(__file__).parents[3] / "graphs" / "golden" / "rng.json").read_text(encoding="utf-8")
)
N = 1 << 18


def bits(values):
    return [f"{int(value):08x}" for value in values.view(np.uint32)]


def test_the_golden_file_is_of_this_specification():
    assert GOLDEN["spec"] == rng.SPEC_ID
    assert len(GOLDEN["known_answers"]) == 3
    assert len(GOLDEN["streams"]) >= 10


@pytest.mark.parametrize("case", GOLDEN["known_answers"], ids=lambda case: case["counter"][0])
def test_known_answers_of_random123(case):
    counter = np.array([[int(word, 16) for word in case["counter"]]], dtype=np.uint32)
    key = tuple(int(word, 16) for word in case["key"])
    assert bits(rng.philox_rounds(counter, key)[0]) == case["result"]


@pytest.mark.parametrize("case", GOLDEN["streams"], ids=lambda case: f"start{case['start']}")
def test_streams(case):
    arguments = (
        int(case["seed"], 16),
        case["tensor_id"],
        case["query"],
        case["step"],
        len(case["words"]),
        case["start"],
    )
    assert bits(rng.words(*arguments)) == case["words"]
    assert bits(rng.normals(*arguments)) == case["normals"]
    assert rng.signs(*arguments).tolist() == case["signs"]


@pytest.mark.parametrize("case", GOLDEN["masks"], ids=lambda case: f"share{case['share']}")
def test_masks(case):
    arguments = (
        int(case["seed"], 16),
        rng.DROPOUT | case["tensor_id"],
        case["example"],
        case["step"],
        len(case["factors"]),
        float.fromhex(case["share"]),
        case["start"],
    )
    assert bits(rng.kept(*arguments)) == case["factors"]


@pytest.mark.parametrize("share", [0.05, 0.3, 0.999])
def test_a_share_of_the_elements_is_left_out(share):
    factors = rng.kept(9, 1, 2, 3, N, share)
    dropped = int((factors == 0).sum())
    assert stats.binomtest(dropped, N, share).pvalue > 1e-4
    assert set(np.unique(factors)) == {np.float32(0), np.float32(1 / (1 - share))}
    for wrong in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="share is"):
            rng.kept(9, 1, 2, 3, 4, wrong)


@pytest.mark.parametrize("case", GOLDEN["permutations"], ids=lambda case: f"n{case['n']}")
def test_permutations(case):
    order = rng.permutation(int(case["seed"], 16), case["epoch"], case["n"])
    assert order.tolist() == case["order"]
    assert sorted(order.tolist()) == list(range(case["n"]))


def test_key_and_counter_words_are_where_the_specification_says():
    seed, tensor_id, query, step, block = 0x0011223344556677, 5, 6, 7, 8
    counter = np.array([[block, tensor_id, query, step]], dtype=np.uint32)
    expected = rng.philox_rounds(counter, (0x44556677, 0x00112233))
    assert np.array_equal(rng.philox(seed, tensor_id, query, step, block, 1), expected)


def test_normals_are_box_muller_to_float_accuracy():
    word = rng.philox(9, 1, 2, 3, 0, N // 4).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log(((word[:, 0] >> 9) + 0.5) * 2.0**-23))
    angle = (word[:, 1] >> 8) * (2 * np.pi / 2**24)
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)
    error = np.abs(rng.normals(9, 1, 2, 3, N) - expected)
    assert error.max() < 6e-7
    assert (error / np.repeat(radius, 2)).max() < 2e-7


@pytest.mark.parametrize("first", [0, 0xFFFFFFFF], ids=["largest radius", "smallest radius"])
@pytest.mark.parametrize("quarter", range(4))
def test_ends_of_the_ranges(first, quarter):
    """The extreme radii, at exact quarter turns and at the eighths where the quadrant changes."""
    steps = np.array([0, 1, -1, 2**21 - 1, 2**21, -(2**21)]) + quarter * 2**22
    word = np.zeros((len(steps), 2), dtype=np.uint32)
    word[:, 0] = first
    word[:, 1] = (steps % 2**24) << 8
    values = rng.normals_from_words(word.reshape(-1, 4)).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log(((first >> 9) + 0.5) * 2.0**-23))
    angle = steps * (2 * np.pi / 2**24)
    expected = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    assert np.isfinite(values).all()
    assert np.abs(values / radius - expected).max() < 2e-7


def test_elements_can_be_produced_alone():
    whole = rng.normals(11, 4, 2, 77, 1031)
    for start in (0, 1, 2, 3, 4, 511, 1030):
        assert bits(rng.normals(11, 4, 2, 77, 1, start)) == bits(whole[start : start + 1])
    assert bits(rng.normals(11, 4, 2, 77, 700, 131)) == bits(whole[131:831])


def test_pieces_join_where_the_implementation_splits_its_work():
    edge = 4 * rng._CHUNK
    whole = rng.normals(11, 4, 2, 77, edge + 10)
    assert bits(rng.normals(11, 4, 2, 77, 20, edge - 10)) == bits(whole[-20:])


def test_moments():
    z = rng.normals(123, 0, 0, 0, N).astype(np.float64)
    assert abs(z.mean()) < 4 / N**0.5
    assert abs(z.var() - 1) < 4 * (2 / N) ** 0.5
    assert abs((z**3).mean()) < 4 * (15 / N) ** 0.5
    assert abs((z**4).mean() - 3) < 4 * (96 / N) ** 0.5


@pytest.mark.parametrize("lane", range(4))
def test_distribution_of_each_lane(lane):
    z = rng.normals(321, 2, 1, 5, 4 * 50_000)[lane::4]
    assert stats.kstest(z, "norm").pvalue > 1e-3


def test_signs_are_fair_and_are_the_top_bit():
    sign = rng.signs(5, 0, 0, 0, N)
    assert set(sign.tolist()) == {-1.0, 1.0}
    assert abs(sign.mean()) < 4 / N**0.5
    assert np.array_equal(sign < 0, rng.words(5, 0, 0, 0, N) >> 31 == 1)


@pytest.mark.parametrize(
    "other",
    [(6, 0, 0, 0), (5 + (1 << 32), 0, 0, 0), (5, 1, 0, 0), (5, 0, 1, 0), (5, 0, 0, 1)],
    ids=["seed low", "seed high", "tensor", "query", "step"],
)
def test_streams_are_independent(other):
    a, b = rng.normals(5, 0, 0, 0, N), rng.normals(*other, N)
    assert not np.array_equal(a, b)
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / N**0.5
    assert abs(np.corrcoef(a**2, b**2)[0, 1]) < 4 / N**0.5


def test_lanes_of_one_stream_are_independent():
    lanes = rng.normals(5, 0, 0, 0, 4 * 50_000).reshape(-1, 4)
    correlation = np.corrcoef(np.concatenate([lanes, lanes**2], axis=1).T) - np.eye(8)
    assert np.abs(correlation).max() < 4.5 / 50_000**0.5


def test_permutations_differ_by_epoch_and_are_uniform():
    assert rng.permutation(1, 0, 50).tolist() != rng.permutation(1, 1, 50).tolist()
    counts = np.zeros((4, 4))
    for epoch in range(4000):
        counts[np.arange(4), rng.permutation(8, epoch, 4)] += 1
    assert stats.chisquare(counts.reshape(-1)).pvalue > 1e-3


@pytest.mark.parametrize("name", ["seed", "tensor_id", "query", "step", "count", "start"])
@pytest.mark.parametrize("function", [rng.words, rng.signs, rng.normals])
def test_numbers_out_of_range_are_refused(function, name):
    good = {"seed": 0, "tensor_id": 0, "query": 0, "step": 0, "count": 4, "start": 0}
    too_large = {"seed": 1 << 64, "count": 1 << 40, "start": 1 << 34}.get(name, 1 << 32)
    for bad in (-1, too_large):
        with pytest.raises(ValueError, match=name):
            function(**{**good, name: bad})


def test_the_last_element_is_the_end():
    assert rng.normals(0, 0, 0, 0, 1, (1 << 34) - 1).shape == (1,)
    with pytest.raises(ValueError, match="2\\*\\*34"):
        rng.normals(0, 0, 0, 0, 2, (1 << 34) - 1)
    with pytest.raises(ValueError, match="blocks"):
        rng.philox(0, 0, 0, 0, (1 << 32) - 1, 2)


@pytest.mark.parametrize("bad", [(-1, 0, 1), (0, -1, 1), (0, 0, -1), (0, 1 << 32, 1)])
def test_permutation_refuses_numbers_out_of_range(bad):
    with pytest.raises(ValueError, match="expected 0 <="):
        rng.permutation(*bad)


def test_nothing_asked_gives_nothing():
    assert rng.normals(0, 0, 0, 0, 0, 3).shape == (0,)
    assert rng.words(0, 0, 0, 0, 0).dtype == np.uint32
