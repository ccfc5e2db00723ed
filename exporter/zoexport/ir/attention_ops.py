"""Attention over what was cached of the tokens before, as an operator of namespace ``zoexport``; ``ops`` imports this.

A device adds up in another order (``runtime_ops/kernels/cached_attention.h``).
"""

from __future__ import annotations

import torch

from zoexport.ir.op_arguments import whole
from zoexport.ir.op_schemas import cpu, fake


@cpu("cached_attention")
def cached_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    position: torch.Tensor,
    slopes: torch.Tensor | None,
    scale: float,
    softcap: float,
    window: int,
) -> torch.Tensor:
    """What T tokens read of the tokens before them and of each other.

    Args:
        q: float32 (1, H, T, D). k: float32 (1, N, T, D), v: float32 (1, N, T, E) of the same tokens; N divides H, and
            query head h reads head h // (H / N).
        keys: float32 (N, R, D), values: float32 (N, R, E) of the tokens before: that at position p stands in row p % R,
            unless a later one does.
        position: int64 (1), of the first of the T tokens.
        slopes: float32 (H), what is added to a score for each token that a key comes after the query (ALiBi); or None.
        scale: of the scores. softcap: c of c * tanh(score / c); 0: none.
        window: how many tokens a query sees, itself the last; 0: all of them up to itself.

    Returns:
        float32 (1, H, T, E).

    Raises:
        ValueError: other shapes, a position below 0, or rows that are needed and no longer there.
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


@fake("cached_attention")
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    position: torch.Tensor,
    slopes: torch.Tensor | None,
    scale: float,
    softcap: float,
    window: int,
) -> torch.Tensor:
    return q.new_empty((*q.shape[:3], v.shape[3]))
