"""Recurrences and causal convolutions over tokens, as operators of namespace ``zoexport``; ``ops`` imports this module.

A device adds up in another order (``runtime_ops/kernels/recurrence.h``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoexport.ir.declare import differentiable, like, operator
from zoexport.ir.op_arguments import whole

_MOST_PARTS = 8
"""Parts of the heads over one key whose gradients are added up apart, so that threads can share them."""

# --- recurrences ----------------------------------------------------------------------------------


def _said(q: Tensor, v: Tensor) -> Tensor:
    return q.new_empty(v.shape)


@operator(_said)
def linear_recurrence(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, rates: Tensor | None, beta: Tensor | None
) -> Tensor:
    """A state for each head, which decays and takes a token's value under its key; differentiable but in rates.

    S_t = exp(decay_t rates) S_{t-1} + k_t u_t^T and out_t = S_t^T q_t from S_0 = 0, where u_t is v_t or, with the
    delta rule, beta_t (v_t - (exp(decay_t rates) S_{t-1})^T k_t). This is the state space of Mamba (Gu and Dao 2023,
    section 3) and Mamba 2 (Dao and Gu 2024, section 3), and the gated delta rule (Yang et al. 2024, equation 10).

    Args:
        q, k: float32 (B, T, G, K), G divides H: value head h reads key head h // (H / G).
        v: float32 (B, T, H, V).
        decay: float32 (B, T, H, 1 or K). rates: float32 (H, K), factors of the decay; None: 1.
        beta: float32 (B, T, H); None: no delta rule.

    Returns:
        float32 (B, T, H, V).
    """
    return _run(q, k, v, decay, rates, beta)[0]


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    rates: Tensor | None,
    beta: Tensor | None,
    state: Tensor | None = None,
    count: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the results and the state after ``count`` tokens, (B, H, K, V)."""
    batches, tokens, heads, width = v.shape
    q, k = (one.repeat_interleave(heads // one.shape[2], 2) for one in (q, k))
    factors = torch.exp(decay if rates is None else decay * rates)
    now = q.new_zeros((batches, heads, q.shape[3], width)) if state is None else state
    made, last = v.new_empty(v.shape), now
    for token in range(tokens):
        now = now * factors[:, token].unsqueeze(-1)
        key, value = k[:, token].unsqueeze(-1), v[:, token]
        if beta is not None:
            value = beta[:, token].unsqueeze(-1) * (value - (now * key).sum(2))
        now = now + key * value.unsqueeze(2)
        made[:, token] = (now * q[:, token].unsqueeze(-1)).sum(2)
        if count is None or token < count:
            last = now
    return made, last


def parts_of(q: Tensor, v: Tensor) -> int:
    """Return the parts whose gradients by q and k :func:`linear_recurrence_gradient` leaves apart."""
    each = v.shape[2] // q.shape[2]
    return int(q.shape[2]) * max(part for part in range(1, _MOST_PARTS + 1) if each % part == 0)


def _gradients(
    q: Tensor, v: Tensor, decay: Tensor, parts: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    apart = (*q.shape[:2], parts, q.shape[3])
    return (
        *(q.new_empty(apart), q.new_empty(apart), like(v), like(decay)),
        v.new_empty(v.shape[:3]),
    )


@operator(_gradients, "dq", "dk", "dv", "ddecay", "dbeta")
def linear_recurrence_gradient(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    rates: Tensor | None,
    beta: Tensor | None,
    parts: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of :func:`linear_recurrence`.

    Args:
        gradient: float32 (B, T, H, V), of the result.
        q, k, v, decay, rates, beta: as there.
        parts: :func:`parts_of` q and v; of each the heads follow one another.

    Returns:
        dq, dk: float32 (B, T, parts, K), whose sum over the parts of a key head is the gradient.
        dv, ddecay: as v and decay. dbeta: float32 (B, T, H), zeros without beta.
    """
    heads, each = v.shape[2], v.shape[2] // q.shape[2]
    every = [one.repeat_interleave(each, 2) for one in (q, k)]
    leaves = [one.detach().requires_grad_() for one in (*every, v, decay)]
    strength = None if beta is None else beta.detach().requires_grad_()
    leaves += [] if strength is None else [strength]
    with torch.enable_grad():
        made = _run(leaves[0], leaves[1], leaves[2], leaves[3], rates, strength)[0]
        dq, dk, dv, ddecay, *rest = torch.autograd.grad(made, leaves, gradient)
    dq, dk = (one.unflatten(2, (parts, heads // parts)).sum(3) for one in (dq, dk))
    dbeta = rest[0].contiguous() if rest else v.new_zeros(v.shape[:3])
    return dq, dk, dv.contiguous(), ddecay.contiguous(), dbeta


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


@differentiable("linear_recurrence", _save)
def _(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, decay, rates, beta = ctx.saved_tensors
    parts = parts_of(q, v)
    operation = torch.ops.zoexport.linear_recurrence_gradient
    dq, dk, dv, ddecay, dbeta = operation(gradient, q, k, v, decay, rates, beta, parts)
    if parts > q.shape[2]:
        dq, dk = (one.unflatten(2, (q.shape[2], -1)).sum(3) for one in (dq, dk))
    return dq, dk, dv, ddecay, None, None if beta is None else dbeta


def _cached(v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return like(v), state.new_empty((1, *state.shape))


@operator(_cached, "out", "after")
def cached_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    rates: Tensor | None,
    beta: Tensor | None,
    state: Tensor,
    position: Tensor,
    count: Tensor,
) -> tuple[Tensor, Tensor]:
    """:func:`linear_recurrence` that goes on from the state of the tokens before.

    Args:
        q, k, v, decay, rates, beta: as there, B is 1.
        state: float32 (H, 1, K V), after the token before; any numbers if ``position`` is 0.
        position: int64 (1), of the first token. count: int64 (1) of 1 to T, after which the state is given.

    Returns:
        out: as there. after: float32 (1, H, 1, K V).
    """
    first, taken = whole("position", position), whole("count", count)
    sizes = (1, v.shape[2], q.shape[3], v.shape[3])
    before = state.reshape(sizes) if first else torch.zeros(sizes)
    made, last = _run(q, k, v, decay, rates, beta, before, taken)
    return made, last.reshape(1, *state.shape)


# --- causal convolutions --------------------------------------------------------------------------


@operator(lambda x: like(x))
def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None, reverse: bool) -> Tensor:
    """The convolution of each channel with its own taps over a token and those before; differentiable in x alone.

    out_t = bias + sum_i weight[:, W - 1 - i] x_{t - i} or, in reverse, x_{t + i}: the gradient of the other by x.

    Args:
        x: float32 (B, T, C). weight: float32 (C, W). bias: float32 (C) or None.

    Returns:
        float32 (B, T, C).
    """
    window = weight.shape[1]
    taps = weight.flip(1) if reverse else weight
    sides = (0, window - 1) if reverse else (window - 1, 0)
    padded = torch.nn.functional.pad(x.mT, sides)
    made = torch.nn.functional.conv1d(padded, taps.unsqueeze(1), bias, groups=x.shape[2])
    return made.mT.contiguous()


def _save_taps(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, weight, _, ctx.reverse = inputs
    ctx.save_for_backward(weight)


@differentiable("causal_conv", _save_taps)
def _(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
    (weight,) = ctx.saved_tensors
    return torch.ops.zoexport.causal_conv(dy, weight, None, not ctx.reverse), None, None, None


@operator(lambda x: like(x))
def cached_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor, position: Tensor
) -> Tensor:
    """:func:`causal_conv` of tokens that follow others.

    Args:
        x: float32 (1, T, C). weight, bias: as there.
        before: float32 (1, rows, C), rows at least W - 1: token t's x is row t modulo ``rows``.
        position: int64 (1), of the first token; before token 0 there are zeros.

    Returns:
        float32 (1, T, C).
    """
    first, window = whole("position", position), weight.shape[1]
    places = torch.arange(first - window + 1, first)
    rows = before[:, places % before.shape[1]].where((places >= 0)[:, None], 0.0)
    joined = torch.cat((rows, x), 1)
    return causal_conv(joined, weight, bias, False)[:, window - 1 :].contiguous()
