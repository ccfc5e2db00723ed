"""Products of rows with the weights of the experts that a router chose for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def routed_product(
    made: Tensor, x: Tensor, experts: Tensor, weight: Callable[[int], Tensor], count: int
) -> Tensor:
    """Fill ``made[t, j]`` with ``x[t, j] W[experts[t, j]]`` for each token t and choice j, and return it.

    Args:
        made: float (tokens, k, width).
        x: float (tokens, k, depth), or (tokens, 1, depth) if all choices of a token read the same row.
        experts: int64 (tokens, k), experts by number; a number outside [0, count) gives zeros.
        weight: returns the weight (depth, width) of an expert; called once for each that was chosen.
        count: number of experts.
    """
    made.zero_()
    rows = x.expand(-1, experts.shape[1], -1)
    for expert in experts.unique().tolist():
        if 0 <= expert < count:
            chosen = experts == expert
            made[chosen] = rows[chosen] @ weight(expert)
    return made
