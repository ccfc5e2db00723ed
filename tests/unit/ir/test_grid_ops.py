"""Linear layers over trained integers: torch against ExecuTorch with the native library, and what each refuses."""

import pytest
import torch

from tests.support.programs import lower, refuses, same, values
from zoexport.core import grid, int4
from zoexport.ir.graphs import zo as ZO

F32 = torch.float32
N, K, QUERIES, ID, EPS, BITS = 37, 96, 3, 11, 0.5, 2
OPERATORS = ("grid_linear_int4", "grid_linear_int8")


def one(value, dtype=torch.int64):
    return torch.tensor([value], dtype=dtype)


def weight(name, n=N, k=K):
    full = values(n, k, seed=3) / 8
    return int4.quantize_int4(full) if name == "grid_linear_int4" else int4.quantize_int8(full)


def table():
    return torch.from_numpy(grid.pair_table(EPS, BITS))


def given(name, rows=(2 * QUERIES * 4, 2), eps=EPS, seed=7, step=9, bias=True, width=K):
    x, added = values(*rows, width, seed=2), values(N, seed=4)
    noise = (table(), one(ID), one(eps, F32), one(seed), one(step))
    return (x, *weight(name, k=width), *((added,) if bias else ()), *noise)


def call(name):
    def run(x, codes, scales, bias, *noise):
        return getattr(ZO, name)(x, codes, scales, bias, *noise, QUERIES)

    return run


def call_without_bias(name):
    def run(x, codes, scales, *noise):
        return getattr(ZO, name)(x, codes, scales, None, *noise, QUERIES)

    return run


def near(got, expected):
    return torch.allclose(got, expected, rtol=0, atol=1e-5)


@pytest.fixture(scope="module", params=OPERATORS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def method(name):
    t = torch.export.Dim("T", min=1, max=300)
    return lower(call(name), given(name), dynamic=({0: 6 * t}, *[{}] * 8))


# --- the product ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [6, 12, 30, 300])
@pytest.mark.parametrize(("seed", "step"), [(7, 9), (-1, 0), (2**40, 2**32 - 1)])
def test_products_are_near(name, method, rows, seed, step):
    arguments = given(name, (rows, 2), seed=seed, step=step)
    got = method.execute(arguments)[0]
    assert near(got, call(name)(*arguments))
    assert not near(got, call(name)(*given(name, (rows, 2), seed=seed + 1, step=step)))


def test_copies_are_products_with_moved_integers(name, method):
    x, codes, scales, bias, entries, *_ = arguments = given(name)
    integers = int4.unpack_int4(codes) if name == "grid_linear_int4" else codes
    low, high = (-8, 7) if name == "grid_linear_int4" else (-127, 127)
    expected = []
    for copy, rows in enumerate(x.chunk(2 * QUERIES)):
        first, _ = grid.draw_pairs(entries.numpy(), 7, ID, copy // 2, 9, N * K)
        level = torch.from_numpy(first).reshape(N, K).int() * (1 if copy % 2 == 0 else -1)
        moved = (integers.int() + level).clamp(low, high)
        assert not torch.equal(moved, integers.int())
        if name == "grid_linear_int4":
            expected.append(ZO.linear_int4(rows, int4.pack_int4(moved), scales, bias))
        else:
            expected.append(ZO.linear_int8(rows, moved.to(torch.int8), scales, bias))
    for out in (method.execute(arguments)[0], call(name)(*arguments)):
        assert near(out, torch.cat(expected))


def test_without_epsilon_it_is_the_plain_layer(name):
    arguments = given(name, (5, 7), eps=0.0)
    x, codes, scales, bias, *_ = arguments
    got = lower(call(name), arguments).execute(arguments)[0]
    plain = {"grid_linear_int4": ZO.linear_int4, "grid_linear_int8": ZO.linear_int8}[name]
    assert same(got, lower(plain, (x, codes, scales, bias)).execute((x, codes, scales, bias))[0])
    assert same(call(name)(*arguments), plain(x, codes, scales, bias))


def test_any_other_epsilon_only_says_that_it_perturbs(name, method):
    small, large = (method.execute(given(name, eps=eps))[0] for eps in (1e-30, 7.0))
    assert same(small, large)


def test_rows_of_one_axis_without_bias(name):
    arguments = given(name, (), eps=0.0, bias=False)
    got = lower(call_without_bias(name), arguments).execute(arguments)[0]
    assert got.shape == (N,) and near(got, call_without_bias(name)(*arguments))


@pytest.mark.parametrize("width", [7, 36, 801])
def test_int8_of_any_width(width):
    arguments = given("grid_linear_int8", (QUERIES * 2 * 3,), bias=False, width=width)
    run = call_without_bias("grid_linear_int8")
    got = lower(run, arguments).execute(arguments)[0]
    assert near(got, run(*arguments))


# --- what is refused ------------------------------------------------------------------------------


def misfits():
    """Calls that export accepts: what is wrong, and in whose name Python says it (None: it is torch that fails)."""
    four, eight = (dict(zip(NAMES, given(name, (12,)), strict=True)) for name in OPERATORS)
    two = torch.ones(2, dtype=torch.int64)

    def with_(name=OPERATORS[0], queries=QUERIES, **changed):
        return name, ((four if name == OPERATORS[0] else eight) | changed, queries)

    def int8(**changed):
        return with_(OPERATORS[1], **changed)

    entries = four["table"]
    return {
        "x double": (None, with_(x=four["x"].double())),
        "x of another width": (None, with_(x=values(12, K + 32))),
        "codes int8": (None, with_(codes=eight["codes"])),
        "scales float32": (None, with_(scales=four["scales"].float())),
        "codes uint8 of int8": (None, int8(codes=torch.zeros(N, K, dtype=torch.uint8))),
        "scales of one": (None, int8(scales=eight["scales"][:1])),
        "bias too long": (None, with_(bias=values(N + 1))),
        "bias double": (None, with_(bias=values(N).double())),
        "table int64": ("table", with_(table=entries.long())),
        "table of three columns": ("table", int8(table=torch.zeros(8, 3, dtype=torch.int32))),
        "table of four entries": ("table", with_(table=entries[:4].contiguous())),
        "table of nine entries": ("table", with_(table=torch.zeros(9, 2, dtype=torch.int32))),
        "table too large": ("table", with_(table=torch.zeros(2048, 2, dtype=torch.int32))),
        "number int32": ("number", with_(number=one(1, torch.int32))),
        "number negative": ("number", int8(number=one(-1))),
        "number of rounding": ("number", with_(number=one(1 << 31))),
        "epsilon double": ("epsilon", with_(epsilon=one(EPS, torch.float64))),
        "epsilon of two": ("epsilon", int8(epsilon=torch.ones(2))),
        "seed of two": ("seed", with_(seed=two)),
        "step int32": ("step", with_(step=one(1, torch.int32))),
        "step negative": ("step", int8(step=one(-1))),
        "no queries": ("queries", with_(queries=0)),
        "rows are no copies": ("copies", with_(queries=4)),
        "rows are no copies of int8": ("copies", int8(queries=4)),
    }


NAMES = ("x", "codes", "scales", "bias", "table", "number", "epsilon", "seed", "step")


@pytest.mark.parametrize("case", sorted(misfits()))
def test_a_misfit_is_refused(case):
    said, (name, (named, queries)) = misfits()[case]
    operator, arguments = getattr(ZO, name), (*named.values(), queries)
    if said is not None:
        with pytest.raises(ValueError, match=said):
            operator(*arguments)
    refuses(operator.default, arguments)
