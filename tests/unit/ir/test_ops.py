"""The operators: torch against ExecuTorch with the native library, and what each refuses."""

import pytest
import torch

from tests.support.programs import lower, refuses, same, values
from zoexport.core import int4, rng
from zoexport.ir.declare import DEVICE
from zoexport.ir.graphs import zo as ZO

F32 = torch.float32


def one(value, dtype=torch.int64):
    return torch.tensor([value], dtype=dtype)


@pytest.fixture(scope="module")
def update():
    return lower(
        lambda m, g, learning_rate, seed, step: ZO.zo_update(m, g, learning_rate, seed, step, 17),
        (values(7, 51), values(3), one(1e-2, F32), one(5), one(4)),
    )


def test_update_along_signs_has_the_same_bits_and_is_the_documented_sum():
    method = lower(
        lambda m, g, learning_rate, seed, step: ZO.zo_update_signs(
            m, g, learning_rate, seed, step, 17
        ),
        (values(7, 51), values(3), one(1e-2, F32), one(5), one(4)),
    )
    master, g, learning_rate = values(7, 51), values(3, seed=2), 0.05
    arguments = (master, g, one(learning_rate, F32), one(2**63 - 1), one(9))
    out = method.execute(arguments)[0]
    assert same(out, ZO.zo_update_signs(*arguments, 17))
    z = [torch.from_numpy(rng.signs(2**63 - 1, 17, j, 8, 357)).double() for j in range(3)]
    expected = master.double().flatten() - learning_rate / 3 * sum(
        float(g[j]) * z[j] for j in range(3)
    )
    assert torch.allclose(out.double().flatten(), expected, rtol=0, atol=1e-6)
    # Nothing pending.
    arguments = (master, torch.zeros(3), one(float("nan"), F32), one(5), one(0))
    assert same(method.execute(arguments)[0], master)
    assert same(ZO.zo_update_signs(*arguments, 17), master)


@pytest.mark.parametrize("seed", [0, 5, -1, -(2**63), 2**40])
@pytest.mark.parametrize("step", [1, 4, 2**32 - 1])
def test_update_has_the_same_bits(update, seed, step):
    arguments = (values(7, 51), values(3, seed=1), one(3e-2, F32), one(seed), one(step))
    assert same(update.execute(arguments)[0], ZO.zo_update(*arguments, 17))


def test_update_is_the_documented_sum(update):
    master, g, learning_rate = values(7, 51), values(3, seed=2), 0.05
    out = update.execute((master, g, one(learning_rate, F32), one(2**63 - 1), one(9)))[0]
    z = [torch.from_numpy(rng.normals(2**63 - 1, 17, j, 8, 357)).double() for j in range(3)]
    expected = master.double().flatten() - learning_rate / 3 * sum(
        float(g[j]) * z[j] for j in range(3)
    )
    assert torch.allclose(out.double().flatten(), expected, rtol=0, atol=1e-6)


def test_update_with_nothing_pending_is_a_copy(update):
    master = values(7, 51)
    master[0, 0], master[0, 1] = -0.0, float("inf")
    arguments = (master, torch.zeros(3), one(float("nan"), F32), one(5), one(0))
    assert same(update.execute(arguments)[0], master)
    assert same(ZO.zo_update(*arguments, 17), master)


@pytest.mark.parametrize("step", [0, -1, 2**32])
def test_update_refuses_a_step(update, step):
    arguments = (values(7, 51), values(3), one(1e-2, F32), one(5), one(step))
    with pytest.raises(RuntimeError):
        update.execute(arguments)
    with pytest.raises(ValueError, match="step"):
        ZO.zo_update(*arguments, 17)


def test_perturbed_copies_have_the_same_bits():
    method = lower(
        lambda m, eps, seed, step: ZO.zo_perturb(m, eps, seed, step, 3, 4),
        (values(5, 67), one(1e-2, F32), one(5), one(4)),
    )
    single = lower(
        lambda m, eps, sign, seed, step, query: ZO.zo_perturb_one(
            m, eps, sign, seed, step, query, 3
        ),
        (values(5, 67), one(1e-2, F32), one(1.0, F32), one(5), one(4), one(0)),
    )
    master, eps, seed, step = values(5, 67, seed=9), one(1e-3, F32), one(-7), one(123)
    out = method.execute((master, eps, seed, step))[0]
    assert out.shape == (8, 5, 67)
    assert same(out, ZO.zo_perturb(master, eps, seed, step, 3, 4))
    for copy in range(8):
        sign = one(1.0 if copy % 2 == 0 else -1.0, F32)
        arguments = (master, eps, sign, seed, step, one(copy // 2))
        assert same(single.execute(arguments)[0], out[copy : copy + 1])
        assert same(ZO.zo_perturb_one(*arguments, 3), out[copy : copy + 1])
    for sign in (0.0, 0.5, float("nan")):
        arguments = (master, eps, one(sign, F32), seed, step, one(0))
        with pytest.raises(RuntimeError):
            single.execute(arguments)
        with pytest.raises(ValueError, match="sign"):
            ZO.zo_perturb_one(*arguments, 3)
    for query in (-1, 2**32):
        arguments = (master, eps, one(1.0, F32), seed, step, one(query))
        with pytest.raises(RuntimeError):
            single.execute(arguments)
        with pytest.raises(ValueError, match="query"):
            ZO.zo_perturb_one(*arguments, 3)


def test_copies_along_signs_have_the_same_bits_and_the_first_is_not_moved():
    method = lower(
        lambda m, eps, seed, step: ZO.zo_perturb_signs(m, eps, seed, step, 3, 4),
        (values(5, 67), one(1e-2, F32), one(5), one(4)),
    )
    master, eps, seed, step = values(5, 67, seed=9), one(1e-3, F32), one(-7), one(123)
    master[0, 0] = -0.0
    out = method.execute((master, eps, seed, step))[0]
    assert out.shape == (5, 5, 67)
    assert same(out, ZO.zo_perturb_signs(master, eps, seed, step, 3, 4))
    assert same(out[0], master)
    for query in range(4):
        u = torch.from_numpy(rng.signs(2**64 - 7, 3, query, 123, 5 * 67)).view(5, 67)
        assert set(u.unique().tolist()) == {-1.0, 1.0}
        assert same(out[1 + query], master + eps * u)


@pytest.fixture(scope="module")
def logprobs():
    m = torch.export.Dim("M", min=1, max=64)
    return lower(
        ZO.label_logprobs,
        (values(4, 6, 500), torch.zeros(6, dtype=torch.int64)),
        dynamic=({1: m}, {0: m}),
    )


@pytest.mark.parametrize("m", [1, 6, 64])
def test_label_logprobs(logprobs, m):
    logits = values(4, m, 500, seed=m) * 5
    labels = logits[0].argmax(dim=1)
    half = (m + 1) // 2
    labels[half:] = torch.arange(m - half) * 7 % 500
    got, hit = logprobs.execute((logits, labels))
    expected, expected_hit = ZO.label_logprobs(logits, labels)
    reference = torch.log_softmax(logits.double(), dim=-1).gather(
        2, labels.reshape(1, m, 1).expand(4, m, 1)
    )
    assert got.shape == (4, m)
    assert torch.allclose(got, reference.squeeze(2).float(), rtol=1e-6, atol=1e-6)
    assert torch.allclose(got, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(hit, expected_hit)
    assert 0 < hit.sum() < hit.numel()


def test_a_tie_goes_to_the_lowest_index(logprobs):
    logits = torch.zeros(4, 2, 500)
    labels = torch.tensor([0, 499])
    for _, hit in (logprobs.execute((logits, labels)), ZO.label_logprobs(logits, labels)):
        assert hit.tolist() == [[1.0, 0.0]] * 4


@pytest.mark.parametrize("label", [-1, -100, 500, 2**62])
def test_a_label_outside_the_vocabulary_is_refused(logprobs, label):
    labels = torch.tensor([3, label, 4])
    with pytest.raises(RuntimeError):
        logprobs.execute((values(4, 3, 500), labels))
    with pytest.raises(ValueError, match="label"):
        ZO.label_logprobs(values(4, 3, 500), labels)


def test_embedding_int4():
    codes, scales = int4.quantize_int4(values(50, 64))
    t = torch.export.Dim("T", min=1, max=30)
    method = lower(
        lambda i: ZO.embedding_int4(codes, scales, i),
        (torch.zeros(2, 5, dtype=torch.int64),),
        dynamic=({1: t},),
    )
    indices = torch.randint(0, 50, (2, 30), generator=torch.Generator().manual_seed(1))
    got = method.execute((indices,))[0]
    assert same(got, int4.dequantize_int4(codes, scales)[indices])
    assert same(got, ZO.embedding_int4(codes, scales, indices))
    for bad in (-1, 50):
        with pytest.raises(RuntimeError):
            method.execute((torch.full((2, 3), bad),))
        with pytest.raises(ValueError, match="table"):
            ZO.embedding_int4(codes, scales, torch.full((2, 3), bad))


def misfits():
    """Calls that export accepts (its shape rules check no more) and the kernels must refuse."""
    codes, scales = int4.quantize_int4(values(8, 64))
    m, g, f, i = values(3, 4), values(2), one(1e-2, F32), one(1)
    logits, labels = values(2, 3, 10), torch.zeros(3, dtype=torch.int64)
    double, two = torch.ones(1, dtype=torch.float64), torch.ones(2, dtype=torch.int64)
    update = ZO.zo_update.default
    return {
        "master double": (update, (m.double(), g, f, i, i, 0)),
        "gradients empty": (update, (m, g[:0], f, i, i, 0)),
        "gradients double": (update, (m, g.double(), f, i, i, 0)),
        "rate double": (update, (m, g, double, i, i, 0)),
        "rate of two": (update, (m, g, torch.ones(2), i, i, 0)),
        "seed int32": (update, (m, g, f, i.int(), i, 0)),
        "step of two": (update, (m, g, f, i, two, 0)),
        "tensor id negative": (update, (m, g, f, i, i, -1)),
        "tensor id too large": (update, (m, g, f, i, i, 2**32)),
        "perturb master double": (ZO.zo_perturb.default, (m.double(), f, i, i, 0, 2)),
        "perturb epsilon double": (ZO.zo_perturb.default, (m, double, i, i, 0, 2)),
        "perturb seed of two": (ZO.zo_perturb.default, (m, f, two, i, 0, 2)),
        "perturb step int32": (ZO.zo_perturb.default, (m, f, i, i.int(), 0, 2)),
        "no queries": (ZO.zo_perturb.default, (m, f, i, i, 0, 0)),
        "no queries of signs": (ZO.zo_perturb_signs.default, (m, f, i, i, 0, 0)),
        "signs of master double": (ZO.zo_perturb_signs.default, (m.double(), f, i, i, 0, 2)),
        "signs without gradients": (ZO.zo_update_signs.default, (m, g[:0], f, i, i, 0)),
        "logits of rank 2": (ZO.label_logprobs.default, (logits[0], labels[:3])),
        "logits double": (ZO.label_logprobs.default, (logits.double(), labels)),
        "labels too few": (ZO.label_logprobs.default, (logits, labels[:2])),
        "labels int32": (ZO.label_logprobs.default, (logits, labels.int())),
        "indices int32": (ZO.embedding_int4.default, (codes, scales, labels.int())),
    }


@pytest.mark.parametrize("name", sorted(misfits()))
def test_the_kernels_refuse(name):
    call, arguments = misfits()[name]
    refuses(call, arguments)


def test_every_operator_is_declared_with_its_out_overload():
    for name in DEVICE:
        packet = getattr(ZO, name)
        assert set(packet.overloads()) == {"default", "out"}
    for name in ("dequantize_int4", "dequantize_int8", "sparse_add_mm_given"):
        assert set(getattr(ZO, name).overloads()) == {"default"}


CHOSEN = torch.tensor([[0, 2], [2, 2], [1, 0], [2, 0], [0, 1]])
CALLS = [
    (
        "zo_update",
        lambda: (values(3, 4), values(2), one(1e-2, F32), one(1), one(2), 3),
    ),
    (
        "zo_update_half",
        lambda: (values(3, 4).half(), values(2), one(1e-2, F32), one(1), one(2), 3),
    ),
    (
        "zo_update_signs",
        lambda: (values(3, 4), values(2), one(1e-2, F32), one(1), one(2), 3),
    ),
    ("zo_perturb", lambda: (values(3, 4), one(1e-2, F32), one(1), one(2), 3, 2)),
    ("zo_perturb_signs", lambda: (values(3, 4), one(1e-2, F32), one(1), one(2), 3, 2)),
    (
        "zo_perturb_one",
        lambda: (values(3, 4), one(1e-2, F32), one(-1.0, F32), one(1), one(2), one(0), 3),
    ),
    ("label_logprobs", lambda: (values(2, 3, 10), torch.tensor([0, 9, 4]))),
    (
        "label_gradient",
        lambda: (values(3, 10), torch.tensor([0, 9, 4]), values(3, seed=1)),
    ),
    (
        "linear_int4_bf16",
        lambda: (values(2, 5, 64), *int4.quantize_int4(values(8, 64)), values(8)),
    ),
    (
        "linear_int4_bf16_input_gradient",
        lambda: (values(2, 5, 8), *int4.quantize_int4(values(8, 64))),
    ),
    ("linear_int4", lambda: (values(2, 5, 64), *int4.quantize_int4(values(8, 64)), None)),
    ("linear_int4", lambda: (values(64), *int4.quantize_int4(values(8, 64)), values(8))),
    (
        "linear_int4_input_gradient",
        lambda: (values(2, 5, 8), *int4.quantize_int4(values(8, 64))),
    ),
    (
        "linear_int8_bf16",
        lambda: (values(2, 5, 64), *int4.quantize_int8(values(8, 64)), values(8)),
    ),
    (
        "linear_int8_bf16_input_gradient",
        lambda: (values(2, 5, 8), *int4.quantize_int8(values(8, 64))),
    ),
    ("linear_int8", lambda: (values(2, 5, 64), *int4.quantize_int8(values(8, 64)), values(8))),
    (
        "linear_int8_input_gradient",
        lambda: (values(8), *int4.quantize_int8(values(8, 64))),
    ),
    ("routed_linear", lambda: (values(5, 1, 64), values(3, 8, 64), CHOSEN, False)),
    (
        "routed_linear_int4",
        lambda: (values(5, 2, 64), *int4.quantize_int4(values(3, 8, 64)), CHOSEN, False),
    ),
    (
        "routed_linear_int8",
        lambda: (values(5, 2, 8), *int4.quantize_int8(values(3, 8, 64)), CHOSEN, True),
    ),
    ("matmul", lambda: (values(2, 5, 8), values(2, 9, 8), False, True)),
    ("matmul", lambda: (values(2, 3, 8, 5), values(2, 3, 8, 9), True, False)),
    (
        "sparse_add_mm",
        lambda: (
            *(values(4, 8), values(4, 5), values(6).half()),
            *(torch.tensor([9, 0, 7, 20, 39, 1], dtype=torch.int32), torch.tensor([1, 5])),
            *(one(1e-2, F32), one(1), one(2), 3, 2, 4),
        ),
    ),
    ("round_activations", lambda: (values(2, 5, 8), torch.tensor([1.0, 0.01, 0.5]))),
    (
        "embedding_int4",
        lambda: (*int4.quantize_int4(values(8, 64)), torch.tensor([[1, 7], [0, 2]])),
    ),
    ("dequantize_int4", lambda: int4.quantize_int4(values(8, 64))),
    ("dequantize_int8", lambda: int4.quantize_int8(values(8, 64))),
    ("rotate_rows", lambda: (values(2, 5, 64),)),
]


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[call[0] for call in CALLS])
def test_schemas_and_shape_rules(name, arguments):
    """torch's own checks: the schema, the fake function against the real one, dynamic shapes."""
    operator = getattr(ZO, name)
    torch.library.opcheck(
        operator.default,
        arguments(),
        test_utils=("test_schema", "test_faketensor"),
    )
    expected = operator(*arguments())
    if name in DEVICE:
        results = expected if isinstance(expected, tuple) else (expected,)
        outs = {key: torch.empty_like(r) for key, r in zip(DEVICE[name], results, strict=True)}
        operator.out(*arguments(), **outs)
        for out, result in zip(outs.values(), results, strict=True):
            assert same(out, result)
