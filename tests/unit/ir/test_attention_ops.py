"""Attention and its gradient: torch's own autograd against ours and the native library, and what each refuses."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
import torch

from tests.support.programs import lower, refuses, values
from zoexport.ir.counts import attention_flops, seen_pairs
from zoexport.ir.graphs import zo as ZO

_CLOSE = 1e-5
"""Relative to the largest: sums of 300 numbers in float32."""


class Shape(NamedTuple):
    """Of q, k and v, and what queries see."""

    batches: int
    tokens: int
    groups: int
    of_group: int
    depth: int
    width: int
    causal: bool
    window: int
    biased: bool


def shapes() -> list[Shape]:
    """Odd ones: drawn, and those at the edges of tiles."""
    drawn = random.Random(28)
    found = []
    for _ in range(10):
        causal = drawn.random() < 0.75
        tokens = drawn.randint(1, 300)
        found.append(
            Shape(
                drawn.randint(1, 3),
                tokens,
                drawn.randint(1, 3),
                drawn.randint(1, 3),
                drawn.randint(1, 90),
                drawn.randint(1, 90),
                causal,
                drawn.choice([0, drawn.randint(1, tokens + 5)]) if causal else 0,
                drawn.random() < 0.5,
            )
        )
    found += [
        Shape(1, 1, 1, 1, 1, 1, True, 0, False),
        Shape(1, 129, 1, 3, 64, 64, True, 0, False),
        Shape(2, 128, 2, 1, 16, 48, True, 128, False),
        Shape(1, 65, 1, 1, 200, 8, True, 64, True),
        Shape(2, 64, 1, 2, 24, 24, False, 0, True),
    ]
    return found


def operands(shape: Shape) -> list[torch.Tensor]:
    b, t, n, g, d, e, *_ = shape
    sizes = ((b, t, n * g, d), (b, t, n, d), (b, t, n, e), (b, t, n * g, e))
    q, k, v, gradient = (values(*size, seed=seed) for seed, size in enumerate(sizes))
    return [q, k, v, gradient, values(b, t, seed=5)]


def by_autograd(shape: Shape, given: list[torch.Tensor], scale: float) -> list[torch.Tensor]:
    """The result, the logarithms and the gradients, in double, by torch."""
    q, k, v, gradient, bias = (one.double() for one in given)
    inputs = [one.requires_grad_() for one in (q, k, v)]
    place = torch.arange(shape.tokens)
    seen = torch.ones(shape.tokens, shape.tokens, dtype=torch.bool)
    if shape.causal:
        seen = place[:, None] >= place
    if shape.window:
        seen = seen & (place[:, None] - place < shape.window)
    mask = torch.zeros(seen.shape, dtype=torch.double).masked_fill(~seen, float("-inf"))
    mask = mask + (bias[:, None, None] if shape.biased else 0)
    turned = [one.transpose(1, 2) for one in inputs]
    out = torch.nn.functional.scaled_dot_product_attention(
        *turned, attn_mask=mask, scale=scale, enable_gqa=True
    ).transpose(1, 2)
    every = turned[1].repeat_interleave(shape.of_group, 1)
    lse = (scale * turned[0] @ every.transpose(2, 3) + mask).logsumexp(-1)
    return [out, lse, *torch.autograd.grad(out, inputs, gradient)]


def near(found: torch.Tensor, exact: torch.Tensor) -> bool:
    assert found.dtype == torch.float32 and found.shape == exact.shape
    return bool((found.double() - exact).abs().max() <= _CLOSE * (1 + exact.abs().max()))


@pytest.mark.parametrize("shape", shapes(), ids=str)
def test_attention_and_its_gradient(shape: Shape) -> None:
    given = operands(shape)
    scale = 0.4 * shape.depth**-0.5
    seen = scale, shape.causal, shape.window
    expected = by_autograd(shape, given, scale)

    def program(q: Any, k: Any, v: Any, gradient: Any, bias: Any) -> Any:
        added = bias if shape.biased else None
        out, lse = ZO.attention(q, k, v, added, *seen)
        return out, lse, *ZO.attention_gradient(q, k, v, added, out, lse, gradient, *seen)

    for results in (program(*given), lower(program, tuple(given)).execute(tuple(given))):
        for ours, theirs in zip(results, expected, strict=True):
            assert near(ours, theirs)


def test_autograd_takes_the_gradient() -> None:
    shape = Shape(2, 21, 2, 2, 7, 5, True, 4, False)
    given = operands(shape)
    inputs = [one.requires_grad_() for one in given[:3]]
    out, lse = ZO.attention(*inputs, None, 0.3, True, 4)
    assert not lse.requires_grad
    found = torch.autograd.grad(out, inputs, given[3])
    exact = by_autograd(shape, [one.detach() for one in given], 0.3)[2:]
    assert all(near(ours, theirs) for ours, theirs in zip(found, exact, strict=True))


@pytest.mark.parametrize(
    ("causal", "window"), [(False, 0), (True, 0), (True, 1), (True, 5), (True, 40)]
)
def test_pairs_are_those_that_are_seen(causal: bool, window: int) -> None:
    for tokens in (0, 1, 4, 5, 6, 23):
        place = torch.arange(tokens)
        behind = place[:, None] - place
        seen = (behind >= 0 if causal else behind == behind) & ((behind < window) | (window == 0))
        assert seen_pairs(tokens, causal, window) == int(seen.sum())
    pairs = seen_pairs(23, causal, window)
    q = (2, 23, 3, 8)
    assert attention_flops(q, 5, causal, window, gradient=False) == 2 * 2 * 3 * pairs * (8 + 5)
    assert attention_flops(q, 5, causal, window, gradient=True) == 2 * 2 * 3 * pairs * (24 + 10)


Q, K, V = values(2, 9, 4, 6), values(2, 9, 2, 6), values(2, 9, 2, 5)
OUT, LSE = values(2, 9, 4, 5), values(2, 4, 9)
MISFITS: dict[str, tuple[Any, ...]] = {
    "heads in unequal groups": (Q, values(2, 9, 3, 6), values(2, 9, 3, 5), None),
    "k of other tokens": (Q, values(2, 8, 2, 6), V, None),
    "v of other heads": (Q, K, values(2, 9, 4, 5), None),
    "k of another width": (Q, values(2, 9, 2, 7), V, None),
    "nothing in a head": (values(2, 9, 4, 0), values(2, 9, 2, 0), V, None),
    "whole numbers": (Q.long(), K, V, None),
    "a bias for each head": (Q, K, V, values(2, 4, 9)),
    "a bias of other tokens": (Q, K, V, values(2, 8)),
}


@pytest.mark.parametrize("name", MISFITS)
def test_the_kernels_refuse_operands(name: str) -> None:
    given = MISFITS[name]
    refuses(ZO.attention.default, (*given, 0.5, True, 0))
    refuses(ZO.attention_gradient.default, (*given, OUT, LSE, OUT, 0.5, True, 0))


@pytest.mark.parametrize("seen", [(0.5, True, -1), (0.5, False, 3), (0.5, True, 1 << 31)])
def test_the_kernels_refuse_windows(seen: tuple[Any, ...]) -> None:
    refuses(ZO.attention.default, (Q, K, V, None, *seen))
    refuses(ZO.attention_gradient.default, (Q, K, V, None, OUT, LSE, OUT, *seen))


@pytest.mark.parametrize(
    "results",
    [(OUT[:1], LSE, OUT), (OUT, LSE[:, :1], OUT), (OUT, LSE, values(2, 9, 4, 6)), (OUT, OUT, OUT)],
)
def test_the_kernel_of_the_gradient_refuses_results(results: tuple[torch.Tensor, ...]) -> None:
    refuses(ZO.attention_gradient.default, (Q, K, V, None, *results, 0.5, True, 0))


def test_torch_refuses_too() -> None:
    for given in MISFITS.values():
        with pytest.raises((ValueError, RuntimeError)):
            ZO.attention(*given, 0.5, True, 0)
    with pytest.raises(ValueError, match="values to unpack"):
        ZO.attention.default(Q[0], K[0], V[0], None, 0.5, True, 0)
    with pytest.raises(ValueError, match="window is 3"):
        ZO.attention(Q, K, V, None, 0.5, False, 3)
    with pytest.raises(ValueError, match="lse"):
        ZO.attention_gradient(Q, K, V, None, OUT, LSE[:1], OUT, 0.5, True, 0)
