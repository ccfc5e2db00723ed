"""Linear layers whose integer weights are perturbed while they are read; ``ops`` imports this module.

The integers are the same here and on devices (``runtime_ops/kernels/grid.h``); products add up in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from zoexport.core import grid, int4
from zoexport.ir.declare import operator
from zoexport.ir.op_arguments import float_of, seed_of, u32, whole
from zoexport.ir.product_ops import linear_shape

_INT4, _INT8 = (-8, 7), (-127, 127)


@operator(linear_shape)
def grid_linear_int4(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    table: Tensor,
    number: Tensor,
    epsilon: Tensor,
    seed: Tensor,
    step: Tensor,
    queries: int,
) -> Tensor:
    """x W^T (+ bias) for all perturbed copies at once (QuZO, equation 8; docs/noise.md).

    Args:
        x: float32 (..., K), rows that are 2 * queries copies of as many, one after the other.
        codes, scales: see docs/formats.md. bias: float32 (N) or None.
        table: int32 (2^t, 2), of ``core.grid.pair_table``.
        number: int64 (1), of the codes in the noise specification.
        epsilon: float32 (1); 0 takes the weights as they are, and the rows need be no copies.
        seed, step: int64 (1).
        queries: q; copy 2i has clamp(w + Q1(u_i)), copy 2i+1 has clamp(w - Q1(u_i)).

    Returns:
        float32 (..., N).

    Raises:
        ValueError: an argument of another dtype or shape, or out of range.
    """
    integers = int4.unpack_int4(codes)
    size = integers.shape[1] // scales.shape[1]

    def weight(moved: Tensor) -> Tensor:
        groups = moved.float().view(len(moved), -1, size) * scales.float()[:, :, None]
        return groups.view(moved.shape)

    noise = _Noise(table, number, seed, step, queries)
    return _product(x, integers, _INT4, weight, bias, epsilon, noise)


@operator(linear_shape)
def grid_linear_int8(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    table: Tensor,
    number: Tensor,
    epsilon: Tensor,
    seed: Tensor,
    step: Tensor,
    queries: int,
) -> Tensor:
    """:func:`grid_linear_int4` of codes int8 (N, K) and scales float32 (N)."""

    def weight(moved: Tensor) -> Tensor:
        return moved.float() * scales[:, None]

    noise = _Noise(table, number, seed, step, queries)
    return _product(x, codes, _INT8, weight, bias, epsilon, noise)


class _Noise:
    """The first roundings of a step, by query."""

    def __init__(
        self,
        table: Tensor,
        number: Tensor,
        seed: Tensor,
        step: Tensor,
        queries: int,
    ) -> None:
        entries = table.shape[0] if table.dim() == 2 and table.shape[1] == 2 else 0
        if table.dtype != torch.int32 or entries not in {1 << log for log in range(3, 11)}:
            raise ValueError(
                f"table is {table.dtype} {tuple(table.shape)}; expected int32 (2^t, 2), t from 3 to 10"
            )
        if queries < 1:
            raise ValueError(f"queries is {queries}; expected at least 1")
        self.queries = queries
        self._table = table.numpy()
        self._number = whole("number", number)
        self._seed, self._step = seed_of(seed), u32("step", step)
        if not 0 <= self._number < 1 << 31:
            raise ValueError(f"number is {self._number}; expected 0 <= number < 2**31")

    def first(self, query: int, shape: torch.Size) -> Tensor:
        """Q1 of a query, int32."""
        drawn, _ = grid.draw_pairs(
            self._table, self._seed, self._number, query, self._step, math.prod(shape)
        )
        return torch.from_numpy(drawn.astype(np.int32)).view(shape)


def _product(
    x: Tensor,
    integers: Tensor,
    limits: tuple[int, int],
    weight: Callable[[Tensor], Tensor],
    bias: Tensor | None,
    epsilon: Tensor,
    noise: _Noise,
) -> Tensor:
    linear = torch.nn.functional.linear
    if float_of("epsilon", epsilon) == 0:
        return linear(x, weight(integers), bias)
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) % (2 * noise.queries):
        raise ValueError(f"{len(rows)} rows; expected 2 * {noise.queries} copies of as many")
    results = []
    for copy, part in enumerate(rows.chunk(2 * noise.queries)):
        sign = 1 if copy % 2 == 0 else -1
        moved = integers.int() + sign * noise.first(copy // 2, integers.shape)
        results.append(linear(part, weight(moved.clamp(*limits)), bias))
    return torch.cat(results).view(*x.shape[:-1], -1)
