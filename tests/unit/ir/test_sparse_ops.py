"""Operators over sparse weights in half: torch against ExecuTorch with the native library, and what each refuses."""

import pytest
import torch

from tests.support.programs import lower, refuses, same, values
from zoexport.core import rng
from zoexport.ir.graphs import zo as ZO

F32, HALF = torch.float32, torch.float16
N, K, BEGIN, ENTRIES, QUERIES, ID = 37, 50, 5, 300, 3, 11


def one(value, dtype=torch.int64):
    return torch.tensor([value], dtype=dtype)


def sparse(n=N, k=K, begin=BEGIN, entries=ENTRIES):
    """Values and places of a model, of which those of one weight lie in the middle; and their range."""
    chosen = torch.randperm(n * k, generator=torch.Generator().manual_seed(n))[:entries]
    places = torch.full((begin + entries + 4,), -1, dtype=torch.int32)
    places[begin : begin + entries] = chosen.sort().values.int()
    return values(len(places), seed=4).half(), places, torch.tensor([begin, begin + entries])


def call(y, x, master, places, span, eps, seed, step):
    return ZO.sparse_add_mm(y, x, master, places, span, eps, seed, step, ID, QUERIES, ENTRIES)


def given(rows=(2 * QUERIES * 4, 3), eps=1e-2, seed=7, step=9):
    y, x = values(*rows, N, seed=1), values(*rows, K, seed=2)
    return (y, x, *sparse(), one(eps, F32), one(seed), one(step))


@pytest.fixture(scope="module")
def method():
    t = torch.export.Dim("T", min=1, max=300)
    return lower(call, given(), dynamic=({0: 6 * t}, {0: 6 * t}, *[{}] * 6))


# --- the product ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [6, 12, 30, 102, 600])
@pytest.mark.parametrize(("seed", "step"), [(7, 9), (-1, 0), (2**40, 2**32 - 1)])
def test_sparse_add_mm_has_the_same_bits(method, rows, seed, step):
    arguments = given((rows, 3), 1e-2, seed, step)
    assert same(method.execute(arguments)[0], call(*arguments))


def test_sparse_add_mm_is_a_dense_product_for_each_copy(method):
    y, x, master, places, _, eps, *_ = arguments = given()
    begin, end = BEGIN, BEGIN + ENTRIES
    expected = []
    for copy in range(2 * QUERIES):
        z = torch.from_numpy(rng.normals(7, ID, copy // 2, 9, len(master))).double()
        moved = master.double() + (1 if copy % 2 == 0 else -1) * float(eps) * z
        weight = torch.zeros(N * K, dtype=torch.float64)
        weight[places[begin:end].long()] = moved[begin:end]
        rows = slice(4 * copy, 4 * copy + 4)
        expected.append(y[rows].double() + x[rows].double() @ weight.reshape(N, K).T)
    for out in (method.execute(arguments)[0], call(*arguments)):
        assert torch.allclose(out.double(), torch.cat(expected), rtol=0, atol=1e-5)


def test_without_epsilon_the_rows_need_be_no_copies():
    arguments = given((5, 7), 0.0)
    y, x, master, places, *_ = arguments
    got = lower(call, arguments).execute(arguments)[0]
    assert same(got, call(*arguments))
    weight = torch.zeros(N * K, dtype=torch.float64)
    weight[places[BEGIN : BEGIN + ENTRIES].long()] = master[BEGIN : BEGIN + ENTRIES].double()
    exact = y.double() + x.double() @ weight.reshape(N, K).T
    assert torch.allclose(got.double(), exact, rtol=0, atol=1e-5)


def test_the_range_may_be_empty_or_change(method):
    y, x, master, places, _, *rest = given()
    for begin, end in ((0, 0), (BEGIN, BEGIN + 1), (BEGIN + 2, BEGIN + 130), (60, 305)):
        arguments = (y, x, master, places, torch.tensor([begin, end]), *rest)
        out = method.execute(arguments)[0]
        assert same(out, call(*arguments))
        assert same(out, y) == (begin == end)


def test_rows_of_one_axis():
    arguments = (values(N), values(K), *sparse(), one(0.0, F32), one(1), one(2))
    assert same(lower(call, arguments).execute(arguments)[0], call(*arguments))


# --- the update -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def update():
    return lower(
        lambda m, g, learning_rate, seed, step: ZO.zo_update_half(
            m, g, learning_rate, seed, step, 17
        ),
        (values(357).half(), values(3), one(1e-2, F32), one(5), one(4)),
    )


@pytest.mark.parametrize("seed", [0, -1, 2**40])
@pytest.mark.parametrize("step", [1, 2**32 - 1])
def test_half_update_is_the_float_update_rounded(update, seed, step):
    # From subnormal to infinite.
    master = (values(357) * 2.0 ** (torch.arange(357) % 40 - 24)).half()
    arguments = (values(3, seed=1), one(3e-2, F32), one(seed), one(step))
    got = update.execute((master, *arguments))[0]
    expected = ZO.zo_update(master.float(), *arguments, 17).numpy()
    with_numpy = torch.from_numpy(expected.astype("float16"))
    for out in (got, ZO.zo_update_half(master, *arguments, 17)):
        assert out.dtype == HALF and torch.equal(
            out.view(torch.int16), with_numpy.view(torch.int16)
        )
    assert not torch.equal(got, master)


def test_half_update_with_nothing_pending_is_a_copy(update):
    master = values(357).half()
    bits = master.view(torch.int16)
    bits[:4] = torch.tensor(
        [0x7C01, 0x7C00, -0x8000, 1]
    )  # a signalling NaN, infinity, -0, subnormal
    arguments = (master, torch.zeros(3), one(float("nan"), F32), one(5), one(0))
    assert torch.equal(update.execute(arguments)[0].view(torch.int16), bits)
    assert torch.equal(ZO.zo_update_half(*arguments, 17).view(torch.int16), bits)


def test_half_update_refuses():
    master, g, learning_rate = values(8).half(), values(2), one(1e-2, F32)
    with pytest.raises(ValueError, match="master"):
        ZO.zo_update_half(master.float(), g, learning_rate, one(1), one(1), 17)
    with pytest.raises(ValueError, match="step"):
        ZO.zo_update_half(master, g, learning_rate, one(1), one(0), 17)


# --- what is refused ------------------------------------------------------------------------------


def misfits():
    """Calls that export accepts (its shape rules check no more): what is wrong, and in whose name Python says it."""
    y, x, master, places, span, eps, seed, step = given((12,))
    numbers = (ID, QUERIES, ENTRIES)
    two, i = torch.ones(2, dtype=torch.int64), one(1)

    def with_(**changed):
        tensors = {"y": y, "x": x, "values": master, "places": places, "span": span}
        tensors |= {"eps": eps, "seed": seed, "step": step}
        tensors |= {key: value for key, value in changed.items() if key != "numbers"}
        return (*tensors.values(), *changed.get("numbers", numbers))

    def moved(at, place):
        other = places.clone()
        other[at] = place
        return other

    cases = {
        "y double": ("y", with_(y=y.double())),
        "x double": ("x", with_(x=x.double())),
        "x of fewer rows": ("same rows", with_(x=x[:6])),
        "x of another rank": ("same rows", with_(x=x.reshape(3, 4, K))),
        "values float32": ("values", with_(values=master.float())),
        "values of two axes": ("values", with_(values=master.reshape(1, -1))),
        "places int64": ("places", with_(places=places.long())),
        "places too few": ("places", with_(places=places[:-1])),
        "range int32": ("range", with_(span=span.int())),
        "range of one": ("range", with_(span=i)),
        "range from below": ("range", with_(span=torch.tensor([-1, 3]))),
        "range backwards": ("range", with_(span=torch.tensor([9, 8]))),
        "range past the end": ("range", with_(span=torch.tensor([300, 310]))),
        "range too long": ("range", with_(numbers=(ID, QUERIES, ENTRIES - 1))),
        "place negative": ("places", with_(places=moved(BEGIN, -1))),
        "place twice": ("places", with_(places=moved(BEGIN + 1, int(places[BEGIN])))),
        "place past the matrix": ("places", with_(places=moved(BEGIN + ENTRIES - 1, N * K))),
        "epsilon double": ("epsilon", with_(eps=eps.double())),
        "epsilon of two": ("epsilon", with_(eps=torch.ones(2))),
        "seed of two": ("seed", with_(seed=two)),
        "step int32": ("step", with_(step=i.int())),
        "step negative": ("step", with_(step=one(-1))),
        "tensor id negative": ("tensor_id", with_(numbers=(-1, QUERIES, ENTRIES))),
        "no queries": ("queries", with_(numbers=(ID, 0, ENTRIES))),
        "rows are no copies": ("copies", with_(numbers=(ID, 4, ENTRIES))),
    }
    product = {name: (said, ZO.sparse_add_mm, case) for name, (said, case) in cases.items()}
    g, rate, half = values(2), one(1e-2, F32), values(8).half()
    return product | {
        "master float32": ("master", ZO.zo_update_half, (values(8), g, rate, i, i, 0)),
        "no gradients": ("gradients", ZO.zo_update_half, (half, g[:0], rate, i, i, 0)),
        "gradients half": ("gradients", ZO.zo_update_half, (half, g.half(), rate, i, i, 0)),
        "rate of two": ("learning_rate", ZO.zo_update_half, (half, g, g, i, i, 0)),
    }


@pytest.mark.parametrize("name", sorted(misfits()))
def test_a_misfit_is_refused(name):
    said, operator, arguments = misfits()[name]
    with pytest.raises(ValueError, match=said):
        operator(*arguments)
    refuses(operator.default, arguments)
