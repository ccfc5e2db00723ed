"""Products and the gradient of the loss: torch against ExecuTorch with the native library, and what each refuses."""

import pytest
import torch

from tests.support.programs import lower, refuses, values
from zoexport.core import int4
from zoexport.ir.graphs import zo as ZO
from zoexport.ir.product_ops import as_bf16, rounded_rows

N, K = 70, 192
KINDS = ["int4", "int4_bf16", "int8", "int8_bf16"]


def packed(kind, n=N, k=K, group_size=32):
    weight = values(n, k)
    if kind.startswith("int4"):
        return int4.quantize_int4(weight, group_size)
    return int4.quantize_int8(weight)


def dequantized(kind, codes, scales):
    """As the products of a kind multiply it."""
    return factor(kind, getattr(int4, f"dequantize_{kind[:4]}")(codes, scales))


def factor(kind, x):
    return as_bf16(x) if kind.endswith("bf16") else x


def near(got, expected, bound=1e-6):
    """Whether two results differ by rounding alone, relative to their norm."""
    assert got.dtype == torch.float32 and got.shape == expected.shape
    return float((got.double() - expected).norm()) <= bound * float(expected.norm())


# --- linear layers --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [False, True])
def test_linear(kind, bias):
    codes, scales = packed(kind)
    operator = getattr(ZO, f"linear_{kind}")
    added = values(N, seed=3) if bias else None
    t = torch.export.Dim("T", min=1, max=40)
    method = lower(
        lambda x: operator(x, codes, scales, added), (values(2, 9, K),), dynamic=({1: t},)
    )
    weight = dequantized(kind, codes, scales).double()
    for length in (1, 9, 40):
        x = values(2, length, K, seed=length)
        read = factor(kind, x).double()
        exact = torch.nn.functional.linear(read, weight, added.double() if bias else None)
        assert near(method.execute((x,))[0], exact)
        assert near(operator(x, codes, scales, added), exact)


@pytest.mark.parametrize("kind", [*KINDS, "rounded", "matmul"])
@pytest.mark.parametrize("used", [0, 1, 5, 7])
def test_rows_of_zeros_at_the_end_are_not_multiplied(kind, used):
    """They would give what is no number, by a weight with an infinity."""
    added = None if kind == "matmul" else values(N, seed=3)
    if kind == "matmul":
        weight = values(N, K)
        weight[4, 7] = torch.inf
        layer = lambda x: ZO.matmul(x, weight, False, True)  # noqa: E731
    else:
        codes, scales = packed("int4" if kind == "rounded" else kind)
        scales.view(-1)[3] = torch.inf
        operator = ZO.rounded_linear if kind == "rounded" else getattr(ZO, f"linear_{kind}")
        layer = lambda x: operator(x, codes, scales, added)  # noqa: E731
    x = values(8, K)
    x[used:] = 0
    x[used // 2] = 0 if used > 1 else x[used // 2]  # one that others follow
    method = lower(layer, (x,))
    found = method.execute((x,))[0]
    assert torch.equal(
        found[used:], torch.zeros(8 - used, N) if added is None else added.expand(8 - used, N)
    )
    assert not found[:used].isfinite().all() or used == 0
    expected = layer(x)[:used]
    finite = expected.isfinite()
    assert torch.equal(found[:used].isfinite(), finite)
    assert near(found[:used][finite], expected[finite].double())


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_zeros_at_the_end_are_not_multiplied(kind):
    codes, scales = packed(kind)
    operator = getattr(ZO, f"linear_{kind}_input_gradient")
    dy = values(6, N)
    dy[4:] = 0
    method = lower(lambda y: operator(y, codes, scales), (dy,))
    assert near(method.execute((dy,))[0], operator(dy, codes, scales).double())
    scales.view(-1)[3] = torch.inf
    method = lower(lambda y: operator(y, codes, scales), (dy,))
    found = method.execute((dy,))[0]
    assert torch.equal(found[4:], torch.zeros(2, K)) and not found[:4].isfinite().all()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group_size", [32, 96])
def test_rounded_linear(bias, group_size):
    codes, scales = packed("int4", group_size=group_size)
    operator = ZO.rounded_linear
    added = values(N, seed=3) if bias else None
    t = torch.export.Dim("T", min=1, max=40)
    method = lower(
        lambda x: operator(x, codes, scales, added), (values(2, 9, K),), dynamic=({1: t},)
    )
    weight = dequantized("int4", codes, scales).double()
    for length in (1, 9, 40):
        x = values(2, length, K, seed=length)
        read = rounded_rows(x).double()
        exact = torch.nn.functional.linear(read, weight, added.double() if bias else None)
        assert near(method.execute((x,))[0], exact)
        assert near(operator(x, codes, scales, added), exact)


def test_rounded_rows_are_integers_of_a_scale():
    x = values(5, 96, seed=4) * torch.tensor([1e-20, 1.0, 7e8]).repeat_interleave(32)
    groups, read = (t.unflatten(-1, (3, 32)) for t in (x, rounded_rows(x)))
    steps = read / (groups.abs().amax(-1, keepdim=True) / 127)
    assert (steps - steps.round()).abs().max() < 1e-4 and steps.abs().max() < 127.001
    assert ((read - groups).abs() <= groups.abs().amax(-1, keepdim=True) / 253).all()


def test_rounded_rows_of_odd_numbers():
    x = torch.zeros(4, 32)
    x[1] = 1e-31
    x[2, 3], x[3, 4] = torch.inf, torch.nan
    assert rounded_rows(x)[:2].eq(0).all() and rounded_rows(x)[2:].isnan().all()
    codes, scales = packed("int4", k=32)
    method = lower(lambda x: ZO.rounded_linear(x, codes, scales, None), (x,))
    (y,) = method.execute((x,))
    assert y[:2].eq(0).all() and y[2:].isnan().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_input_gradient(kind, rank):
    codes, scales = packed(kind, group_size=64)
    operator = getattr(ZO, f"linear_{kind}_input_gradient")
    dy = values(*(2, 17, N)[3 - rank :])
    exact = factor(kind, dy).double() @ dequantized(kind, codes, scales).double()
    got = lower(lambda dy: operator(dy, codes, scales), (dy,)).execute((dy,))[0]
    assert near(got, exact)
    assert near(operator(dy, codes, scales), exact)


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_is_unpacked_exactly(kind):
    """Rows of the identity give back the weight, in both directions."""
    codes, scales = packed(kind)
    weight = dequantized(kind, codes, scales)
    forward, backward = (
        getattr(ZO, f"linear_{kind}"),
        getattr(ZO, f"linear_{kind}_input_gradient"),
    )
    eye = torch.eye(K)
    got = lower(lambda x: forward(x, codes, scales, None), (eye,)).execute((eye,))[0]
    assert torch.equal(got, weight.T)
    eye = torch.eye(N)
    got = lower(lambda dy: backward(dy, codes, scales), (eye,)).execute((eye,))[0]
    # By tiles the three parts of an INT8 weight's scale are multiplied, and the sum of the first two may be rounded.
    torch.testing.assert_close(got, weight, rtol=2**-23 if kind == "int8" else 0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_linear_has_the_gradient_of_the_dequantized_product(kind):
    codes, scales = packed(kind)
    bias = values(N, seed=3).requires_grad_()
    x, dy = values(2, 5, K, seed=1).requires_grad_(), values(2, 5, N, seed=2)
    getattr(ZO, f"linear_{kind}")(x, codes, scales, bias).backward(dy)
    expected = factor(kind, dy).double() @ dequantized(kind, codes, scales).double()
    assert near(x.grad, expected)
    assert bias.grad is None  # only x is differentiated


def test_rounding_to_bfloat16():
    x = torch.tensor([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -torch.inf, torch.nan])
    expected = torch.tensor([1.0, 1.0, 1 + 2**-6, torch.inf, -torch.inf, torch.nan])
    torch.testing.assert_close(as_bf16(x), expected, rtol=0, atol=0, equal_nan=True)
    codes, scales = int4.quantize_int8(torch.eye(6))
    for rows in (1, 6):
        diagonal = torch.diag(x)[:rows] if rows > 1 else x[:1, None] * torch.eye(6)[:1]
        method = lower(lambda x: ZO.linear_int8_bf16(x, codes, scales, None), (diagonal,))
        (y,) = method.execute((diagonal,))
        finite = y.isfinite().all(-1)
        assert torch.equal(finite, expected[:rows].isfinite())
        torch.testing.assert_close(y[finite].sum(-1), expected[:rows][finite])


@pytest.mark.parametrize("kind", KINDS)
def test_linear_passes_torchs_checks_with_gradients(kind):
    arguments = (values(3, K).requires_grad_(), *packed(kind), None)
    torch.library.opcheck(
        getattr(ZO, f"linear_{kind}").default,
        arguments,
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


# --- experts --------------------------------------------------------------------------------------


def routed(kind, count, n, k):
    """The weights of experts as an operator takes them, and their values in double."""
    weight = values(count, n, k)
    if kind == "float":
        return (weight,), weight.double()
    parts = getattr(int4, f"quantize_{kind}")(weight)
    return parts, getattr(int4, f"dequantize_{kind}")(*parts).double()


@pytest.mark.parametrize("kind", ["float", "int4", "int8"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("used", [11, 6])
def test_routed_linear(kind, transposed, shared, used):
    """Experts that no row chose, one that most rows choose, numbers of no expert, and rows of zeros at the end."""
    count, n, k, tokens, chosen = 6, 40, 96, 11, 3
    parts, weight = routed(kind, count, n, k)
    operator = ZO.routed_linear if kind == "float" else getattr(ZO, f"routed_linear_{kind}")
    x = values(tokens, 1 if shared else chosen, n if transposed else k, seed=1)
    x[used:] = 0
    experts = torch.randint(0, 4, (tokens, chosen), generator=torch.Generator().manual_seed(2))
    experts[:, 0] = 1
    experts[3] = torch.tensor([-1, count, 5])
    matrices = weight if transposed else weight.mT
    matrices = torch.cat((matrices, torch.zeros_like(matrices[:1])))
    rows = x.double().expand(-1, chosen, -1).unsqueeze(2)
    each = matrices[experts.where((experts >= 0) & (experts < count), count)]
    exact = (rows @ each).squeeze(2)
    t = torch.export.Dim("T", min=1, max=16)
    method = lower(
        lambda x, experts: operator(x, *parts, experts, transposed),
        (x, experts),
        dynamic=({0: t}, {0: t}),
    )
    assert near(method.execute((x, experts))[0], exact)
    assert near(operator(x, *parts, experts, transposed), exact)
    assert near(method.execute((x[:1], experts[:1]))[0], exact[:1])


def test_rows_of_an_expert_beyond_those_gathered_at_a_time():
    parts, weight = routed("int4", 2, 8, 32)
    experts = (torch.arange(900) % 7 == 0).long().view(300, 3)
    x = values(300, 3, 32, seed=1)
    exact = (x.double().unsqueeze(2) @ weight.mT[experts]).squeeze(2)
    method = lower(lambda x, e: ZO.routed_linear_int4(x, *parts, e, False), (x, experts))
    assert near(method.execute((x, experts))[0], exact)


@pytest.mark.parametrize("kind", ["float", "int4", "int8"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_routed_linear_has_the_gradient_of_the_product(kind, shared, transposed):
    parts, weight = routed(kind, 3, 40, 64)
    operator = ZO.routed_linear if kind == "float" else getattr(ZO, f"routed_linear_{kind}")
    experts = torch.tensor([[0, 2], [2, 2], [1, 0]])
    x = values(3, 1 if shared else 2, 40 if transposed else 64, seed=1).requires_grad_()
    exact = x.detach().double().requires_grad_()
    rows = exact.expand(-1, 2, -1).unsqueeze(2)
    made = (rows @ (weight if transposed else weight.mT)[experts]).squeeze(2)
    dy = values(*made.shape, seed=3)
    made.backward(dy.double())
    operator(x, *parts, experts, transposed).backward(dy)
    assert near(x.grad, exact.grad)


# --- linear layers of which labels' log-probabilities leave ---------------------------------------

LABELED = [
    "linear_label_logprobs",
    "linear_label_logprobs_int4",
    "rounded_linear_label_logprobs_int4",
]


def labeled(name, bias=None, scale=1.0, cap=0.0, columns=2100):
    """The operator over a weight of its own, and the exact logits of x."""
    operator = getattr(ZO, name)
    codes, scales = packed("int4", columns, 96)
    dense = values(columns, 96) / 10
    given = (codes, scales) if name.endswith("int4") else (dense,)
    weight = (dequantized("int4", codes, scales) if name.endswith("int4") else dense).double()

    def exact(x):
        read = rounded_rows(x).double() if name.startswith("rounded") else x.double()
        logits = scale * torch.nn.functional.linear(
            read, weight, None if bias is None else bias.double()
        )
        return cap * torch.tanh(logits / cap) if cap else logits

    return lambda x, labels: operator(x, *given, bias, scale, cap, labels), exact


@pytest.mark.parametrize("name", LABELED)
@pytest.mark.parametrize(
    ("bias", "scale", "cap"), [(False, 1.0, 0.0), (True, 0.25, 0.0), (True, 0.05, 4.0)]
)
def test_linear_label_logprobs(name, bias, scale, cap):
    columns = 2100
    operator, exact = labeled(name, values(columns, seed=3) if bias else None, scale, cap, columns)
    m = torch.export.Dim("M", min=1, max=90)
    method = lower(
        operator,
        (values(3, 9, 96), torch.zeros(9, dtype=torch.int64)),
        dynamic=({1: m}, {0: m}),
    )
    for count in (1, 9, 90):
        x = values(3, count, 96, seed=count)
        logits = exact(x)
        labels = logits[0].argmax(dim=1)
        labels[(count + 1) // 2 :] = torch.arange(count // 2) * 1031 % columns
        index = labels.reshape(1, -1, 1).expand(3, -1, 1)
        expected = torch.log_softmax(logits, -1).gather(2, index).squeeze(2)
        for logprobs, hit in (method.execute((x, labels)), operator(x, labels)):
            assert logprobs.shape == hit.shape == (3, count)
            assert torch.allclose(logprobs.double(), expected, rtol=1e-5, atol=1e-5)
            assert torch.equal(hit, (logits.argmax(-1) == labels).float())


@pytest.mark.parametrize("name", LABELED)
def test_labels_and_sizes_of_a_linear_layer_are_looked_at(name):
    operator, _ = labeled(name, columns=40)
    x, labels = values(2, 3, 96), torch.tensor([3, 39, 0])
    method = lower(operator, (x, labels))
    for label in (-1, 40, 2**62):
        wrong = torch.tensor([3, label, 0])
        with pytest.raises(RuntimeError):
            method.execute((x, wrong))
        with pytest.raises(ValueError, match="label"):
            operator(x, wrong)
    for arguments in [
        (x, labels[:2]),
        (x, labels.int()),
        (x[0], labels),
        (values(2, 3, 64), labels),
    ]:
        refuses(operator, arguments)
    assert torch.allclose(method.execute((x, labels))[0], operator(x, labels)[0], atol=1e-5)


# --- products -------------------------------------------------------------------------------------


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_matmul(leading, transpose_a, transpose_b):
    rows, depth, columns = 37, 45, 18
    a = values(*leading, *((depth, rows) if transpose_a else (rows, depth)))
    b = values(*leading, *((columns, depth) if transpose_b else (depth, columns)), seed=1)
    left, right = (
        t.double().mT if turned else t.double()
        for t, turned in ((a, transpose_a), (b, transpose_b))
    )
    method = lower(lambda a, b: ZO.matmul(a, b, transpose_a, transpose_b), (a, b))
    assert near(method.execute((a, b))[0], left @ right)
    assert near(ZO.matmul(a, b, transpose_a, transpose_b), left @ right)
    c = values(*leading, rows, columns, seed=2)
    method = lower(lambda c, a, b: ZO.add_matmul(c, a, b, transpose_a, transpose_b), (c, a, b))
    assert near(method.execute((c, a, b))[0], c.double() + left @ right)
    assert near(ZO.add_matmul(c, a, b, transpose_a, transpose_b), c.double() + left @ right)


def test_matmul_of_a_dynamic_length():
    t = torch.export.Dim("T", min=1, max=64)
    method = lower(
        lambda a, b: ZO.matmul(a, b, True, False), (values(9, 16), values(9, 40)), ({0: t}, {0: t})
    )
    for length in (1, 9, 64):
        a, b = values(length, 16), values(length, 40, seed=1)
        assert near(method.execute((a, b))[0], a.double().T @ b.double())


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (values(3, 4).double(), values(4, 5), "float32"),
        (values(3, 4), values(4, 5).half(), "float32"),
        (values(4), values(4), "rank"),
        (values(2, 3, 4), values(4, 5), "rank"),
        (values(1, 1, 2, 3, 4), values(1, 1, 2, 4, 5), "rank"),
        (values(3, 4), values(5, 4), "do not multiply"),
        (values(2, 3, 4), values(3, 4, 5), "do not multiply"),
    ],
)
def test_matmul_refuses(a, b, message):
    with pytest.raises(ValueError, match=message):
        ZO.matmul(a, b, False, False)


def test_add_matmul_refuses():
    with pytest.raises(ValueError, match="c is"):
        ZO.add_matmul(values(3, 4), values(3, 4), values(4, 5), False, False)


# --- the gradient of the loss ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def gradient():
    m = torch.export.Dim("M", min=1, max=64)
    return lower(
        ZO.label_gradient,
        (values(6, 500), torch.zeros(6, dtype=torch.int64), values(6)),
        dynamic=({0: m}, {0: m}, {0: m}),
    )


@pytest.mark.parametrize("m", [1, 6, 64])
def test_label_gradient_is_autograds(gradient, m):
    logits = values(m, 500, seed=m) * 5
    labels = torch.arange(m) * 7 % 500
    labels[: (m + 1) // 2] = logits.argmax(dim=1)[: (m + 1) // 2]
    weights = values(m, seed=9)
    exact = logits.double().requires_grad_()
    logprobs = torch.log_softmax(exact, dim=1).gather(1, labels.unsqueeze(1)).squeeze(1)
    (logprobs * weights.double()).sum().backward()
    plain = ZO.label_logprobs(logits.unsqueeze(0), labels)
    for results in (
        gradient.execute((logits, labels, weights)),
        ZO.label_gradient(logits, labels, weights),
    ):
        assert torch.allclose(results[0].double(), logprobs.detach(), rtol=1e-6, atol=1e-6)
        assert torch.allclose(results[0], plain[0][0], rtol=1e-6, atol=1e-6)
        assert torch.equal(results[1], plain[1][0])
        bound = 1e-6 * weights.abs().double().unsqueeze(1)
        assert bool(((results[2].double() - exact.grad).abs() <= bound).all())


def test_a_label_outside_the_vocabulary_is_refused(gradient):
    for label in (-1, 500, 2**62):
        arguments = (values(3, 500), torch.tensor([3, label, 4]), values(3))
        with pytest.raises(RuntimeError):
            gradient.execute(arguments)
        with pytest.raises(ValueError, match="label"):
            ZO.label_gradient(*arguments)


@pytest.mark.parametrize(
    ("logits", "labels", "weights", "message"),
    [
        (values(1, 3, 10), torch.zeros(3, dtype=torch.int64), values(3), "logits"),
        (values(3, 10).double(), torch.zeros(3, dtype=torch.int64), values(3), "logits"),
        (values(3, 0), torch.zeros(3, dtype=torch.int64), values(3), "logits"),
        (values(3, 10), torch.zeros(3, dtype=torch.int32), values(3), "label_tokens"),
        (values(3, 10), torch.zeros(2, dtype=torch.int64), values(3), "label_tokens"),
        (values(3, 10), torch.zeros(3, dtype=torch.int64), values(2), "label_weights"),
        (values(3, 10), torch.zeros(3, dtype=torch.int64), values(3).double(), "label_weights"),
    ],
)
def test_label_gradient_refuses(logits, labels, weights, message):
    with pytest.raises(ValueError, match=message):
        ZO.label_gradient(logits, labels, weights)


# --- what the kernels refuse ----------------------------------------------------------------------


def misfits():
    """Calls that export accepts (its shape rules check no more) and the kernels must refuse."""
    codes, scales = int4.quantize_int4(values(8, 64))
    forward, product = ZO.linear_int4.default, ZO.matmul.default
    bytes_, row_scales = int4.quantize_int8(values(8, 64))
    back, forward8 = ZO.linear_int4_input_gradient.default, ZO.linear_int8.default
    back8, loss = ZO.linear_int8_input_gradient.default, ZO.label_gradient.default
    routed4, many = ZO.routed_linear_int4.default, int4.quantize_int4(values(3, 8, 64))
    chosen = torch.tensor([[0, 1], [2, 0]])
    logits, labels, weights = values(3, 10), torch.zeros(3, dtype=torch.int64), values(3)
    return {
        "x too narrow": (forward, (values(2, 63), codes, scales, None)),
        "x double": (forward, (values(2, 64).double(), codes, scales, None)),
        "bias too long": (forward, (values(2, 64), codes, scales, values(9))),
        "scales float": (forward, (values(2, 64), codes, scales.float(), None)),
        "scales of other rows": (forward, (values(2, 64), codes, scales[:5], None)),
        "group of 16": (forward, (values(2, 64), codes, scales.repeat(1, 2), None)),
        "codes int8": (forward, (values(2, 64), codes.char(), scales, None)),
        "dy too narrow": (back, (values(2, 7), codes, scales)),
        "dy double": (back, (values(2, 8).double(), codes, scales)),
        "dy codes int8": (back, (values(2, 8), codes.char(), scales)),
        "dy scales float": (back, (values(2, 8), codes, scales.float())),
        "dy scales of other rows": (back, (values(2, 8), codes, scales[:5])),
        "dy group of 16": (back, (values(2, 8), codes, scales.repeat(1, 2))),
        "int8 x too narrow": (forward8, (values(2, 63), bytes_, row_scales, None)),
        "int8 x double": (forward8, (values(2, 64).double(), bytes_, row_scales, None)),
        "int8 bias too long": (forward8, (values(2, 64), bytes_, row_scales, values(9))),
        "int8 codes uint8": (forward8, (values(2, 64), bytes_.byte(), row_scales, None)),
        "int8 scales of other rows": (forward8, (values(2, 64), bytes_, row_scales[:5], None)),
        "int8 scales double": (forward8, (values(2, 64), bytes_, row_scales.double(), None)),
        "int8 dy too narrow": (back8, (values(2, 7), bytes_, row_scales)),
        "int8 dy codes uint8": (back8, (values(2, 8), bytes_.byte(), row_scales)),
        "add_matmul c of another shape": (
            ZO.add_matmul.default,
            (values(3, 4), values(3, 4), values(4, 5), False, False),
        ),
        "add_matmul c of another rank": (
            ZO.add_matmul.default,
            (values(1, 3, 5), values(3, 4), values(4, 5), False, False),
        ),
        "add_matmul c double": (
            ZO.add_matmul.default,
            (values(3, 5).double(), values(3, 4), values(4, 5), False, False),
        ),
        "routed x of another depth": (routed4, (values(2, 1, 32), *many, chosen, False)),
        "routed x of other tokens": (routed4, (values(3, 1, 64), *many, chosen, False)),
        "routed x of other choices": (routed4, (values(2, 3, 64), *many, chosen, False)),
        "routed experts int32": (routed4, (values(2, 1, 64), *many, chosen.int(), False)),
        "routed codes of a matrix": (routed4, (values(2, 1, 64), codes, scales, chosen, False)),
        "routed scales of other experts": (
            routed4,
            (values(2, 1, 64), many[0], many[1][:2], chosen, False),
        ),
        "matmul a double": (product, (values(3, 4).double(), values(4, 5), False, False)),
        "matmul b double": (product, (values(3, 4), values(4, 5).double(), False, False)),
        "matmul ranks differ": (product, (values(2, 3, 4), values(4, 5), False, False)),
        "matmul of rank 5": (product, (values(1, 1, 1, 3, 4), values(1, 1, 1, 4, 5), False, False)),
        "matmul depths differ": (product, (values(3, 4), values(5, 6), False, False)),
        "matmul depth of a transposed": (product, (values(3, 4), values(4, 5), True, False)),
        "matmul depth of b transposed": (product, (values(3, 4), values(4, 5), False, True)),
        "matmul batches differ": (product, (values(2, 3, 4), values(3, 4, 5), False, False)),
        "gradient logits double": (loss, (logits.double(), labels, weights)),
        "gradient logits of rank 3": (loss, (values(1, 3, 10), labels[:1], weights[:1])),
        "gradient labels too few": (loss, (logits, labels[:2], weights)),
        "gradient labels int32": (loss, (logits, labels.int(), weights)),
        "gradient weights too few": (loss, (logits, labels, weights[:2])),
        "gradient weights double": (loss, (logits, labels, weights.double())),
    }


@pytest.mark.parametrize("name", sorted(misfits()))
def test_the_kernels_refuse(name):
    call, arguments = misfits()[name]
    refuses(call, arguments)
