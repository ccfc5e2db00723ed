"""Recurrences and causal convolutions: torch against ExecuTorch with the native library, and what each refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.programs import lower, refuses, values
from zoexport.ir.graphs import zo as ZO
from zoexport.ir.recurrence_ops import parts_of

B, T, G, H, K, V = 2, 11, 2, 12, 20, 18

#: By name: whether it has the delta rule, rates, and a decay for each element of a key.
KINDS = {
    "linear": (False, False, False),
    "mamba": (False, True, False),
    "delta": (True, False, False),
    "kimi": (True, False, True),
}


def recurrence(kind: str, tokens: int = T, batches: int = B, width: int = V) -> list[Any]:
    delta, has_rates, every = KINDS[kind]
    decay = -values(batches, tokens, H, K if every else 1, seed=4).abs()
    return [
        values(batches, tokens, G, K, seed=1) / 4,
        values(batches, tokens, G, K, seed=2) / 4,
        values(batches, tokens, H, width, seed=3),
        decay,
        values(H, K, seed=5).abs() if has_rates else None,
        values(batches, tokens, H, seed=6).sigmoid() if delta else None,
    ]


def exactly(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, rates: Any, beta: Any) -> Tensor:
    """The recurrence's definition in double, head by head."""
    q, k, v, decay, rates, beta = (
        None if one is None else one.double() for one in (q, k, v, decay, rates, beta)
    )
    rows = []
    for head in range(v.shape[2]):
        group = head // (v.shape[2] // q.shape[2])
        state = v.new_zeros(v.shape[0], q.shape[3], v.shape[3])
        for token in range(v.shape[1]):
            logs = decay[:, token, head] * (1.0 if rates is None else rates[head])
            state = torch.exp(logs).unsqueeze(-1) * state
            key, value = k[:, token, group], v[:, token, head]
            if beta is not None:
                said = torch.einsum("bkv,bk->bv", state, key)
                value = beta[:, token, head, None] * (value - said)
            state = state + key[:, :, None] * value[:, None]
            rows.append(torch.einsum("bkv,bk->bv", state, q[:, token, group]))
    made = torch.stack(rows, 1).unflatten(1, (v.shape[2], v.shape[1]))
    return made.transpose(1, 2)


def close(found: Tensor, expected: Tensor) -> None:
    expected = expected.detach()
    assert found.shape == expected.shape and found.dtype == torch.float32
    assert float((found.double() - expected).abs().max()) <= 2e-6 * float(expected.abs().max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [V, 1])
def test_recurrence(kind: str, width: int) -> None:
    given = recurrence(kind, width=width)
    expected = exactly(*given)
    fixed = given[4:]
    method = lower(lambda *of: ZO.linear_recurrence(*of, *fixed), tuple(given[:4]))
    close(method.execute(tuple(given[:4]))[0], expected)
    close(ZO.linear_recurrence(*given), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 2, 11, 16, 17])
def test_gradients_of_a_recurrence(kind: str, tokens: int) -> None:
    given = recurrence(kind, tokens)
    leaves = [None if one is None else one.double().requires_grad_() for one in given]
    made = exactly(*leaves)
    gradient = values(*made.shape, seed=8)
    made.backward(gradient.double())
    parts = parts_of(given[0], given[2])
    assert parts == G * 6
    operands = (gradient, *given[:4])
    fixed = given[4:]
    method = lower(lambda *of: ZO.linear_recurrence_gradient(*of, *fixed, parts), operands)
    for found in (
        method.execute(operands),
        ZO.linear_recurrence_gradient(*operands, *fixed, parts),
    ):
        dq, dk, dv, ddecay, dbeta = found
        close(dq.unflatten(2, (G, -1)).sum(3), leaves[0].grad)
        close(dk.unflatten(2, (G, -1)).sum(3), leaves[1].grad)
        close(dv, leaves[2].grad)
        close(ddecay, leaves[3].grad)
        close(dbeta, torch.zeros_like(dbeta) if leaves[5] is None else leaves[5].grad)


@pytest.mark.parametrize("kind", KINDS)
def test_autograd_of_a_recurrence(kind: str) -> None:
    given = recurrence(kind)
    exact = [None if one is None else one.double().requires_grad_() for one in given]
    leaves = [
        one if one is None or place == 4 else one.requires_grad_()
        for place, one in enumerate(given)
    ]
    exactly(*exact).square().sum().backward()
    ZO.linear_recurrence(*leaves).square().sum().backward()
    for place in (0, 1, 2, 3, 5):
        if leaves[place] is not None:
            close(leaves[place].grad, exact[place].grad)


def filled(x: Tensor, length: int) -> Tensor:
    """Tokens, and any numbers after them."""
    return torch.cat((x, values(1, length - x.shape[1], *x.shape[2:], seed=9)), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrence_goes_on(kind: str) -> None:
    """Calls of several tokens, some filled up at the end, and of single ones."""
    whole = recurrence(kind, batches=1)
    expected = exactly(*whole)
    state = torch.full((H, 1, K * V), torch.nan)
    first = 0
    for count, length in ((4, 4), (1, 1), (3, 6), (1, 1), (2, 2)):
        part = [
            one if one is None or place == 4 else filled(one[:, first : first + count], length)
            for place, one in enumerate(whole)
        ]
        operands = [one for one in part if one is not None]
        places = [place for place, one in enumerate(part) if one is not None]

        def call(*given: Tensor, places: list[int] = places) -> Any:
            of = dict(zip([*places, 6, 7, 8], given, strict=True))
            return ZO.cached_recurrence(*(of.get(place) for place in range(9)))

        given = (*operands, state, torch.tensor([first]), torch.tensor([count]))
        results = [lower(call, given).execute(given), call(*given)]
        for made, _ in results:
            close(made[:, :count], expected[:, first : first + count])
        state = results[0][1][0].clone()
        first += count
    assert first == T


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("window", [1, 3, 4])
def test_causal_conv(bias: bool, reverse: bool, window: int) -> None:
    x, weight = values(2, 9, 21, seed=1), values(21, window, seed=2)
    added = values(21, seed=3) if bias else None
    t = torch.export.Dim("T", min=2, max=16)
    method = lower(lambda x: ZO.causal_conv(x, weight, added, reverse), (x,), dynamic=({1: t},))
    for tokens in (9, 2):
        rows = x[:, :tokens].double()
        expected = torch.zeros_like(rows) if added is None else added.double().expand_as(rows)
        for tap in range(min(window, tokens)):
            moved = torch.zeros_like(rows)
            if reverse:
                moved[:, : tokens - tap] = rows[:, tap:]
            else:
                moved[:, tap:] = rows[:, : tokens - tap]
            expected = expected + weight[:, window - 1 - tap].double() * moved
        close(method.execute((x[:, :tokens].contiguous(),))[0], expected)
        close(ZO.causal_conv(x[:, :tokens], weight, added, reverse), expected)


def test_autograd_of_a_convolution() -> None:
    x, weight = values(2, 9, 5, seed=1).requires_grad_(), values(5, 3, seed=2)
    exact = x.detach().double().requires_grad_()
    padded = torch.nn.functional.pad(exact.mT, (2, 0))
    torch.nn.functional.conv1d(
        padded, weight.double().unsqueeze(1), groups=5
    ).mT.square().sum().backward()
    ZO.causal_conv(x, weight, None, False).square().sum().backward()
    close(x.grad, exact.grad)


def test_a_convolution_goes_on() -> None:
    window, channels = 4, 10
    x, weight, bias = (
        values(1, T, channels, seed=1),
        values(channels, window, seed=2),
        values(channels),
    )
    expected = ZO.causal_conv(x, weight, bias, False)
    ring = torch.full((1, window - 1, channels), torch.nan)
    first = 0
    for count in (1, 1, 5, 1, 3):
        rows = x[:, first : first + count].contiguous()
        given = (rows, ring, torch.tensor([first]))
        call = lambda x, before, first: ZO.cached_conv(x, weight, bias, before, first)  # noqa: E731
        for made in (lower(call, given).execute(given)[0], call(*given)):
            close(made, expected[:, first : first + count].double())
        for token in range(first, first + count):
            ring[0, token % (window - 1)] = x[0, token]
        first += count


def misfits() -> dict[str, Any]:
    q, k, v, decay, _, beta = recurrence("delta")
    one = [None if one is None else one[:1] for one in (q, k, v, decay)]
    state, first = torch.zeros(H, 1, K * V), torch.tensor([0])
    forward, cached = ZO.linear_recurrence.default, ZO.cached_recurrence.default
    back, conv = ZO.linear_recurrence_gradient.default, ZO.causal_conv.default
    x, taps = values(1, 4, 6), values(6, 3)
    return {
        "keys of other tokens": (forward, (q, k[:, :4], v, decay, None, beta)),
        "heads in unequal groups": (forward, (q, k, v[:, :, :5], decay[:, :, :5], None, None)),
        "decay of other heads": (forward, (q, k, v, decay[:, :, :3], None, beta)),
        "decay of another width": (forward, (q, k, v, decay.repeat(1, 1, 1, 7), None, beta)),
        "rates of other heads": (forward, (q, k, v, decay, values(3, K), beta)),
        "beta of another rank": (forward, (q, k, v, decay, None, beta[0])),
        "v double": (forward, (q, k, v.double(), decay, None, beta)),
        "gradient of other heads": (back, (v[:, :, :3], q, k, v, decay, None, beta, G)),
        "no parts": (back, (v, q, k, v, decay, None, beta, 5)),
        "a state of other heads": (cached, (*one, None, None, state[:3], first, first + 1)),
        "no token": (cached, (*one, None, None, state, first, first)),
        "more tokens than there are": (cached, (*one, None, None, state, first, first + T + 1)),
        "two batches": (cached, (q, k, v, decay, None, beta, state, first, first + 1)),
        "taps of other channels": (conv, (x, taps[:5], None, False)),
        "bias of other channels": (conv, (x, taps, values(5), False)),
        "x of rank 2": (conv, (x[0], taps, None, False)),
        "rows before of other channels": (
            ZO.cached_conv.default,
            (x, taps, None, values(1, 2, 5), first),
        ),
        "too few rows before": (ZO.cached_conv.default, (x, taps, None, values(1, 1, 6), first)),
    }


@pytest.mark.parametrize("name", sorted(misfits()))
def test_the_kernels_refuse(name: str) -> None:
    call, arguments = misfits()[name]
    refuses(call, arguments)
