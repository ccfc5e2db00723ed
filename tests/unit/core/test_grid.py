"""Roundings drawn in pairs, and updates of integers: against exact integrals, samples, scalars and golden vectors."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from zoexport.core import grid, rng

GOLDEN = json.loads(
    (Path(__file__).parents[3] / "graphs" / "golden" / "grid.json").read_text(encoding="utf-8")
)
SETTINGS = [(0.02, 2), (0.1, 2), (0.25, 2), (0.5, 2), (0.25, 4), (1.0, 4), (3.0, 4), (10.0, 8)]
N = 1 << 18


def limit(bits):
    return (1 << (bits - 1)) - 1


def joint(table):
    """P(Q1, Q2) as a table gives it, exactly: entry i's thresholds are of 32 bits, of which the lowest t are 0."""
    size, entries = len(table), table.view(np.uint32)
    found = {}
    for threshold, packed in entries.tolist():
        levels = [int(np.int8(np.uint8(packed >> 8 * i & 255))) for i in range(4)]
        for pair, count in ((levels[:2], threshold), (levels[2:], (1 << 32) - threshold)):
            assert count % size == 0
            if count:
                key = tuple(pair)
                found[key] = found.get(key, 0) + count // size
    assert sum(found.values()) == 1 << 32
    return {pair: count / (1 << 32) for pair, count in found.items()}


def mean(probabilities, value):
    return sum(p * value(*pair) for pair, p in probabilities.items())


def conditional(level, u, eps, most):
    """P(Q = level | u) of equation 5."""
    return np.maximum(0, 1 - np.abs(np.clip(eps * u, -most, most) - level))


def integral(value, eps, most, begin=-9.0, end=9.0):
    """E of a function of u, from ``begin`` to ``end``: Gauss-Legendre over pieces between the kinks."""
    kinks = np.arange(-most, most + 1) / eps
    ends = np.concatenate([kinks, np.linspace(begin, end, 37)]).clip(begin, end)
    ends = np.unique(ends)
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(ends)[:, None] / 2
    u = ends[:-1, None] + half * (1 + nodes)
    return float((value(u) * np.exp(-u * u / 2) / math.sqrt(2 * math.pi) * half * weights).sum())


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("eps", "bits"), SETTINGS)
def test_the_table_holds_the_probabilities_of_equation_5(eps, bits):
    most = limit(bits)
    table = grid.pair_table(eps, bits)
    assert table.dtype == np.int32 and 8 <= len(table) <= 1024
    found = joint(table)
    assert all(abs(a - b) <= 1 and abs(a) <= most and abs(b) <= most for a, b in found)
    spread = min(most, math.ceil(8 * eps))
    for a in range(-spread, spread + 1):
        for b in range(max(-spread, a - 1), min(spread, a + 1) + 1):
            expected = integral(
                lambda u, a=a, b=b: conditional(a, u, eps, most) * conditional(b, u, eps, most),
                eps,
                most,
            )
            # (0, 0) takes what rounding the others leaves over.
            bound = 2**-32 * (1 if (a, b) != (0, 0) else 4 * most + 4)
            assert found.get((a, b), 0.0) == pytest.approx(expected, abs=bound)


@pytest.mark.parametrize(("eps", "bits"), SETTINGS)
def test_moments_of_the_table(eps, bits):
    most = limit(bits)
    found = joint(grid.pair_table(eps, bits))
    assert mean(found, lambda a, b: a) == pytest.approx(0, abs=1e-8)
    assert mean(found, lambda a, b: b) == pytest.approx(0, abs=1e-8)
    # E[Q | u] is e u, cut to L: without cuts E[Q1 Q2] = e^2. Tails below half a count are no pairs.
    bound = 1e-7 * max(1.0, eps * eps)
    product = integral(lambda u: np.clip(eps * u, -most, most) ** 2, eps, most)
    assert mean(found, lambda a, b: a * b) == pytest.approx(product, abs=bound)
    if math.erfc(most / (eps * math.sqrt(2))) < 1e-9:
        assert product == pytest.approx(eps * eps, rel=1e-6)

    def square(u):
        """The square of Q has the variance f (1 - f) of stochastic rounding beside it."""
        x = np.clip(eps * u, -most, most)
        f = x - np.floor(x)
        return x * x + f * (1 - f)

    for own in (lambda a, b: a * a, lambda a, b: b * b):
        assert mean(found, own) == pytest.approx(integral(square, eps, most), abs=bound)


@pytest.mark.parametrize(("eps", "share"), [(0.25, 6e-5), (0.5, 0.05)])
def test_the_share_that_is_cut_is_what_the_page_says(eps, share):
    assert math.erfc(1 / (eps * math.sqrt(2))) == pytest.approx(share, rel=0.1)
    # Where |e u| > 1 it counts as 1.
    short = eps * eps - mean(joint(grid.pair_table(eps, 2)), lambda a, b: a * b)
    beyond = integral(lambda u: (eps * u) ** 2 - 1, eps, 1, begin=1 / eps, end=12.0)
    assert short == pytest.approx(2 * beyond, abs=1e-8)


def test_the_share_that_moves_is_what_the_page_says():
    moved = joint(grid.pair_table(0.1, 2))
    assert 1 - sum(p for (a, _), p in moved.items() if a == 0) == pytest.approx(0.08, rel=0.01)


@pytest.mark.parametrize(("eps", "bits"), [(0.25, 2), (1.0, 4)])
def test_pairs_are_distributed_as_roundings_of_one_normal(eps, bits):
    most, generator = limit(bits), np.random.default_rng(5)
    u = generator.standard_normal(N)
    low = np.floor(eps * u)
    rounded = [
        (low + (generator.random(N) < eps * u - low)).clip(-most, most).astype(int)
        for _ in range(2)
    ]
    drawn = grid.draw_pairs(grid.pair_table(eps, bits), 11, 3, 1, 4, N)
    base = 2 * most + 1
    counts = [
        np.bincount((a.astype(int) + most) * base + (b.astype(int) + most), minlength=base * base)
        for a, b in (rounded, drawn)
    ]
    seen = np.flatnonzero(counts[0] + counts[1] >= 20)
    pooled = np.stack([count[seen] for count in counts])
    assert stats.chi2_contingency(pooled).pvalue > 1e-4


def test_the_table_is_deterministic_and_small():
    for (eps, bits), log in {(0.1, 2): 3, (0.25, 4): 4, (10.0, 8): 9}.items():
        table = grid.pair_table(eps, bits)
        assert len(table) == 1 << log
        assert np.array_equal(table, grid.pair_table(eps, bits))


@pytest.mark.parametrize("eps", [0.0, -0.1, float("nan"), float("inf"), 0.6])
def test_an_eps_that_cannot_be_is_refused(eps):
    with pytest.raises(ValueError, match="eps"):
        grid.pair_table(eps, 2)


def test_bits_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="bits"):
        grid.pair_table(0.1, 9)


# --- drawing --------------------------------------------------------------------------------------


def drawn_one(table, word):
    """As docs/noise.md states it."""
    log = len(table).bit_length() - 1
    threshold, packed = (int(number) & 0xFFFFFFFF for number in table[word >> (32 - log)])
    if ((word << log) & 0xFFFFFFFF) >= threshold:
        packed >>= 16
    return tuple(int(np.int8(np.uint8(packed >> shift & 255))) for shift in (0, 8))


@pytest.mark.parametrize(("eps", "bits"), SETTINGS)
def test_drawing_is_one_word_a_pair(eps, bits):
    table = grid.pair_table(eps, bits)
    for start, count in ((0, 70), (5, 1), (1021, 300)):
        words = rng.words(1 << 40, 9, 2, 3, count, start=start).tolist()
        pairs = grid.draw_pairs(table, 1 << 40, 9, 2, 3, count, start=start)
        assert [pair.dtype for pair in pairs] == [np.int8, np.int8]
        expected = [drawn_one(table, word) for word in words]
        assert list(zip(*(pair.tolist() for pair in pairs), strict=True)) == expected


# --- updates --------------------------------------------------------------------------------------

LIMITS = {4: (-8, 7), 8: (-127, 127)}


def updated(
    integers, bits, table, gradients, learning_rate, eps, seed=3, step=6, second=True, summed=False
):
    return grid.update_codes(
        integers,
        *LIMITS[bits],
        gradients=gradients,
        learning_rate=learning_rate,
        eps=eps,
        table=table,
        seed=seed,
        tensor_id=5,
        step=step,
        second=second,
        summed=summed,
    )


def updated_one(
    value, element, bits, table, gradients, learning_rate, eps, seed, step, second, summed
):
    """As docs/noise.md states it."""
    f32, total, sum_of_all = np.float32, 0, np.float32(0)

    def steps(v, query):
        v = min(float(abs(v)), 255.0)
        r = int(rng.words(seed, 5 + 0x80000000, query, step, 1, start=element)[0])
        return math.floor(v) + (r < int((v - math.floor(v)) * 2**32))

    for query, gradient in enumerate(gradients):
        c = f32(f32(f32(learning_rate) / f32(len(gradients))) * f32(gradient)) / f32(eps)
        word = int(rng.words(seed, 5, query, step, 1, start=element)[0])
        level = drawn_one(table, word)[second]
        move = f32(c) * f32(level)
        sum_of_all = f32(sum_of_all + move)
        total += steps(move, query) if move > 0 else -steps(move, query)
    if summed:
        total = steps(sum_of_all, 0) if sum_of_all > 0 else -steps(sum_of_all, 0)
    low, high = LIMITS[bits]
    return min(max(value - total, low), high)


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize(
    ("bits", "gradients", "learning_rate"),
    [(4, [0.7], 0.05), (4, [-3.0, 0.0, 1.5], 0.2), (8, [40.0, -9.0], 1.5), (8, [1e30], 1.0)],
)
def test_updates_are_those_of_single_numbers(bits, gradients, learning_rate, second, summed):
    table = grid.pair_table(1.0, 4)
    low, high = LIMITS[bits]
    integers = np.random.default_rng(1).integers(low, high + 1, (12, 32)).astype(np.int8)
    got = updated(
        integers, bits, table, gradients, learning_rate, 1.0, second=second, summed=summed
    )
    assert got.dtype == np.int8 and got.shape == integers.shape
    expected = [
        updated_one(
            int(value), element, bits, table, gradients, learning_rate, 1.0, 3, 6, second, summed
        )
        for element, value in enumerate(integers.reshape(-1))
    ]
    assert got.reshape(-1).tolist() == expected
    assert not np.array_equal(got, integers)


@pytest.mark.parametrize("value", [1e-4, 0.03, 0.5, 0.999, 1.25, 7.75])
def test_rounding_has_no_bias(value):
    bits = rng.words(1, 2, 3, 4, N)
    steps = grid.round_steps(np.full(N, value, np.float32), bits)
    assert set(np.unique(steps)) <= {math.floor(value), math.floor(value) + 1}
    f = value - math.floor(value)
    assert steps.mean() == pytest.approx(value, abs=5 * math.sqrt(f * (1 - f) / N))


def test_an_update_moves_by_the_gradient_on_average():
    eps, c = 1.0, 0.4
    table = grid.pair_table(eps, 4)
    integers = np.zeros(N, np.int8)
    moved = updated(integers, 8, table, [c], 1.0, eps)
    _, direction = grid.draw_pairs(table, 3, 5, 0, 6, N)
    for level in (-2, -1, 0, 1, 2):
        at = direction == level
        assert moved[at].mean() == pytest.approx(-c * level, abs=0.02 if level else 0)


def test_one_rounding_of_the_sum_is_less_noise_than_one_of_each_direction():
    """Around the exact sum of c_i Q2(u_i): no bias, and at most the variance of one rounding, a quarter."""
    eps, queries = 1.0, 16
    table = grid.pair_table(eps, 4)
    gradients = [0.3 * (-1) ** query for query in range(queries)]
    exact = sum(
        gradient / queries * grid.draw_pairs(table, 3, 5, query, 6, N)[1].astype(np.float64)
        for query, gradient in enumerate(gradients)
    )
    errors = {}
    for summed in (False, True):
        moved = updated(np.zeros(N, np.int8), 8, table, gradients, 1.0, eps, summed=summed)
        errors[summed] = -moved.astype(np.float64) - exact
        deviation = errors[summed].std()
        assert abs(errors[summed].mean()) <= 5 * deviation / math.sqrt(N)
    assert errors[True].var() <= 0.25
    assert errors[True].var() <= errors[False].var() / 2


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("gradient", [0.0, float("nan"), 1e-40])
def test_what_moves_nothing(gradient, summed):
    integers = np.arange(-8, 8, dtype=np.int8)
    got = updated(integers, 4, grid.pair_table(0.25, 4), [gradient], 0.1, 0.25, summed=summed)
    assert np.array_equal(got, integers)


def test_an_infinite_gradient_moves_to_the_ends():
    table = grid.pair_table(0.25, 4)
    integers = np.zeros(4096, np.int8)
    got = updated(integers, 4, table, [float("inf")], 0.1, 0.25)
    _, direction = grid.draw_pairs(table, 3, 5, 0, 6, integers.size)
    expected = np.where(direction > 0, -8, np.where(direction < 0, 7, 0))
    assert np.array_equal(got, expected)


# --- golden vectors -------------------------------------------------------------------------------


def numbers(text):
    return np.array(text.split(), np.int64).astype(np.int8)


def float_of(text):
    return np.array([int(text, 16)], np.uint32).view(np.float32)[0]


def table_of(item):
    words = [int(word, 16) for word in item["entries"].split()]
    return np.array(words, np.uint32).view(np.int32).reshape(-1, 2)


TABLES = [table_of(item) for item in GOLDEN["tables"]]


@pytest.mark.parametrize("item", GOLDEN["tables"], ids=lambda item: f"{item['eps']}-{item['bits']}")
def test_golden_tables(item):
    # The density and error functions of another libm may round otherwise: a count or two, of 2^32.
    got = joint(grid.pair_table(item["eps"], item["bits"]))
    expected = joint(table_of(item))
    for pair in got | expected:
        assert got.get(pair, 0) == pytest.approx(expected.get(pair, 0), abs=4 * 2**-32)


@pytest.mark.parametrize("item", GOLDEN["draws"], ids=lambda item: f"start{item['start']}")
def test_golden_draws(item):
    first, second = numbers(item["first"]), numbers(item["second"])
    got = grid.draw_pairs(
        TABLES[item["table"]],
        int(item["seed"], 16),
        item["tensor_id"],
        item["query"],
        item["step"],
        first.size,
        start=item["start"],
    )
    assert np.array_equal(got[0], first) and np.array_equal(got[1], second)


@pytest.mark.parametrize(
    "item", GOLDEN["updates"], ids=lambda item: f"{item['bits']}-{item['learning_rate']}"
)
def test_golden_updates(item):
    got = grid.update_codes(
        numbers(item["integers"]),
        *LIMITS[item["bits"]],
        gradients=[float_of(text) for text in item["gradients"]],
        learning_rate=float_of(item["learning_rate"]),
        eps=float_of(item["eps"]),
        table=TABLES[item["table"]],
        seed=int(item["seed"], 16),
        tensor_id=item["tensor_id"],
        step=item["step"],
        second=item["second"],
        summed=item["summed"],
    )
    assert np.array_equal(got, numbers(item["moved"]))
