"""Attention, and attention over what was cached of the tokens before, as operators of namespace ``zoexport``.

A device adds up in another order, and makes no matrix of scores (``runtime_ops/kernels/attention.h``,
``cached_attention.h``). ``ops`` imports this module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoexport.ir.declare import differentiable, like, operator
from zoexport.ir.op_arguments import whole

# --- all tokens over each other -------------------------------------------------------------------


def _attended(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    batches, tokens, heads = q.shape[:3]
    return q.new_empty((batches, tokens, heads, v.shape[3])), q.new_empty((batches, heads, tokens))


@operator(_attended, "out", "lse")
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    scale: float,
    causal: bool,
    window: int,
) -> tuple[Tensor, Tensor]:
    """softmax(scale q k^T + bias) v of every head; differentiable in q, k and v.

    Devices make the softmax as keys come, in tiles (Dao 2023, "FlashAttention-2", algorithm 1).

    Args:
        q: float32 (B, T, H, D). k: float32 (B, T, N, D), v: float32 (B, T, N, E); N divides H, and query head h reads
            head h // (H / N).
        bias: float32 (B, T), added to the scores of a key, as padding is hidden; or None.
        scale: of the scores.
        causal: whether a query sees no tokens after its own.
        window: how many tokens a causal query sees, itself the last; 0: all of them up to itself.

    Returns:
        out: float32 (B, T, H, E).
        lse: float32 (B, H, T), log of the sum of exp(score) over what a query sees.

    Raises:
        ValueError: other dtypes, or shapes that do not belong together.
    """
    _check(q, k, v, bias, causal, window)
    scores = _scores(q, k, bias, scale, causal, window)
    every = v.repeat_interleave(q.shape[2] // k.shape[2], 2)
    out = torch.einsum("bhqk,bkhe->bqhe", scores.softmax(-1), every)
    return out.contiguous(), scores.logsumexp(-1)


@operator(lambda q, k, v: (like(q), like(k), like(v)), "dq", "dk", "dv")
def attention_gradient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    lse: Tensor,
    gradient: Tensor,
    scale: float,
    causal: bool,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of :func:`attention` by q, k and v, its scores computed again (FlashAttention-2, algorithm 2).

    Args:
        q, k, v, bias, scale, causal, window: as there. out, lse: what that gave.
        gradient: float32 (B, T, H, E), of out.

    Returns:
        float32, the shapes of q, k and v.

    Raises:
        ValueError: other dtypes, or shapes that do not belong together.
    """
    _check(q, k, v, bias, causal, window)
    batches, tokens, heads, _ = q.shape
    shapes = {(*q.shape[:3], v.shape[3])}
    if {out.shape, gradient.shape} != shapes or lse.shape != (batches, heads, tokens):
        raise ValueError(
            f"out {tuple(out.shape)}, gradient {tuple(gradient.shape)} and lse {tuple(lse.shape)} "
            f"are not those of q {tuple(q.shape)} and v {tuple(v.shape)}"
        )
    groups = k.shape[2]
    every_key, every_value = (one.repeat_interleave(heads // groups, 2) for one in (k, v))
    p = torch.exp(_scores(q, k, bias, scale, causal, window) - lse[..., None])
    dv = torch.einsum("bhqk,bqhe->bkhe", p, gradient)
    dp = torch.einsum("bqhe,bkhe->bhqk", gradient, every_value)
    delta = torch.einsum("bqhe,bqhe->bhq", out, gradient)
    ds = scale * p * (dp - delta[..., None])
    dq = torch.einsum("bhqk,bkhd->bqhd", ds, every_key).contiguous()
    dk = torch.einsum("bhqk,bqhd->bkhd", ds, q)
    return dq, *(one.unflatten(2, (groups, -1)).sum(3) for one in (dk, dv))


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    causal: bool,
    window: int,
) -> None:
    given = [q, k, v] if bias is None else [q, k, v, bias]
    if any(one.dtype != torch.float32 for one in given):
        raise ValueError(f"{[one.dtype for one in given]}; expected float32")
    batches, tokens, heads, depth = q.shape
    groups = k.shape[2]
    if (
        k.shape != (batches, tokens, groups, depth)
        or v.shape[:3] != k.shape[:3]
        or 0 in (groups, depth, v.shape[3])
        or heads % groups
    ):
        raise ValueError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not belong together"
        )
    if bias is not None and bias.shape != (batches, tokens):
        raise ValueError(f"bias is {tuple(bias.shape)}; expected {(batches, tokens)}")
    if window < 0 or (window and not causal):
        raise ValueError(f"window is {window}; expected at least 0, and 0 where not causal")


def _scores(
    q: Tensor,
    k: Tensor,
    bias: Tensor | None,
    scale: float,
    causal: bool,
    window: int,
) -> Tensor:
    """(B, H, T, T), -infinity for what a query does not see."""
    every = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    scores = scale * torch.einsum("bqhd,bkhd->bhqk", q, every)
    if bias is not None:
        scores = scores + bias[:, None, None, :]
    if not causal:
        return scores
    place = torch.arange(q.shape[1])
    ahead = place[None] - place[:, None]
    hidden = ahead > 0 if window == 0 else (ahead > 0) | (ahead <= -window)
    return scores.masked_fill(hidden, float("-inf"))


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.mark_non_differentiable(output[1])
    ctx.seen = inputs[4:]


@differentiable("attention", _save_attention)
def _(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    gradients = torch.ops.zoexport.attention_gradient(
        *ctx.saved_tensors, gradient.contiguous(), *ctx.seen
    )
    return *gradients, None, None, None, None


# --- over a cache ---------------------------------------------------------------------------------


@operator(lambda q, v: q.new_empty((*q.shape[:3], v.shape[3])))
def cached_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    slopes: Tensor | None,
    scale: float,
    softcap: float,
    window: int,
) -> Tensor:
    """Attend from T tokens to the cached tokens before them and to each other.

    Args:
        q: float32 (1, H, T, D). k: float32 (1, N, T, D), v: float32 (1, N, T, E) of the same tokens; N divides H, and
            query head h reads head h // (H / N).
        keys: float32 (N, R, D), values: float32 (N, R, E) of the tokens before; position p is in
            row p % R, unless a later token has overwritten it.
        position: int64 (1), the position of the first of the T tokens.
        slopes: float32 (H), added to a score per token from query to key (ALiBi); or None.
        scale: factor of the scores. softcap: c of c * tanh(score / c); 0: none.
        window: tokens that a query sees, up to and including itself; 0: all of them.

    Returns:
        float32 (1, H, T, E).

    Raises:
        ValueError: wrong shapes, a negative position, or needed rows that were overwritten.
    """
    heads, tokens = q.shape[1], q.shape[2]
    groups, rows = keys.shape[:2]
    first = whole("position", position)
    if heads % groups or k.shape[1] != groups or first < 0:
        raise ValueError(f"{heads} heads over {groups}, at position {first}")
    most = first if window == 0 else min(first, window - 1)
    if most > rows:
        raise ValueError(f"{most} tokens before are seen, and {rows} are kept")
    before = torch.arange(first - most, first)
    at = torch.cat([before, torch.arange(first, first + tokens)])
    every_key = torch.cat([keys[:, before % rows], k[0]], 1).repeat_interleave(heads // groups, 0)
    every_value = torch.cat([values[:, before % rows], v[0]], 1).repeat_interleave(
        heads // groups, 0
    )
    scores = scale * (q[0] @ every_key.transpose(1, 2))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    ahead = at[None] - torch.arange(first, first + tokens)[:, None]
    if slopes is not None:
        scores = scores + slopes[:, None, None] * ahead
    hidden = ahead > 0 if window == 0 else (ahead > 0) | (ahead <= -window)
    scores = scores.masked_fill(hidden, float("-inf"))
    return (torch.softmax(scores, -1) @ every_value)[None]
