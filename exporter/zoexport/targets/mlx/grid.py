"""Products of perturbed integers, and 8-bit activations, in MLX (see ``operators``).

A perturbation is drawn when it is added, by the counters of the noise specification (docs/noise.md)
in 64-bit integers: it is the perturbation of ``ir.grid_ops``, and no input of a function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from zoexport.core import rng
from zoexport.core.activation_grids import (
    EXPONENT,
    LARGEST_FLOAT,
    LARGEST_STEP,
    LEAST_NORMAL,
    ROUNDS_TO_3_BITS,
)
from zoexport.ir.graphs import zo
from zoexport.targets.mlx.packing import matmul, panels
from zoexport.targets.rules import Rule


def grids() -> dict[Any, Rule]:
    """Return the rules of operators on trained integers and on their 8-bit activations."""
    return {
        zo.grid_linear_int4: _linear_int4,
        zo.grid_linear_int8: _linear_int8,
        zo.round_activations: _round_activations,
    }


def _linear_int4(x: mx.array, codes: mx.array, scales: mx.array, *rest: Any) -> mx.array:
    """codes uint8 (N, K/2), scales (N, K/group)."""

    def integers(rows: slice) -> mx.array:
        nibbles = mx.stack([codes[rows] & 15, codes[rows] >> 4], axis=-1)
        return mx.flatten(nibbles, -2, -1).astype(mx.int32) - 8

    def values(moved: mx.array, rows: slice) -> mx.array:
        groups = mx.unflatten(moved.astype(mx.float32), 1, (scales.shape[1], -1))
        return mx.flatten(groups * scales[rows].astype(mx.float32)[..., None], 1, 2)

    return _product(x, _Weight(len(codes), integers, (-8, 7), values), *rest)


def _linear_int8(x: mx.array, codes: mx.array, scales: mx.array, *rest: Any) -> mx.array:
    """codes int8 (N, K), scales float32 (N)."""

    def integers(rows: slice) -> mx.array:
        return codes[rows].astype(mx.int32)

    def values(moved: mx.array, rows: slice) -> mx.array:
        return moved.astype(mx.float32) * scales[rows, None]

    return _product(x, _Weight(len(codes), integers, (-127, 127), values), *rest)


@dataclasses.dataclass(frozen=True)
class _Weight:
    """A weight that is read a few of its ``size`` rows at a time.

    Attributes:
        integers: of rows, int32. limits: the least and the largest one.
        values: what integers of rows stand for, float32.
    """

    size: int
    integers: Callable[[slice], mx.array]
    limits: tuple[int, int]
    values: Callable[[mx.array, slice], mx.array]


def _product(
    x: mx.array,
    weight: _Weight,
    bias: mx.array | None,
    table: mx.array,
    number: mx.array,
    epsilon: mx.array,
    seed: mx.array,
    step: mx.array,
    queries: int,
) -> mx.array:
    """Compute ``ir.grid_ops``' product; epsilon 0 adds nothing, and 0 queries make one copy.

    Rows of the weight and queries run in sequence: MLX would otherwise hold the noise of all.
    """
    width = x.shape[-1]
    if queries == 0:
        columns_of = [
            matmul(x, weight.values(weight.integers(rows), rows).T)
            for rows in panels(weight.size, width)
        ]
        made = mx.concatenate(columns_of, axis=-1)
        return made if bias is None else made + bias
    parts = mx.split(mx.reshape(x, (-1, width)), 2 * queries)
    columns: list[list[mx.array]] = [[] for _ in parts]
    for rows in panels(weight.size, width):
        for query in range(queries):
            integers = weight.integers(rows)
            drawn = words(seed, number, query, step, integers.size, start=rows.start * width)
            first = mx.reshape(_first_rounding(table, drawn), integers.shape)
            move = mx.where(epsilon == 0, 0, first)
            for copy, moved in ((2 * query, integers + move), (2 * query + 1, integers - move)):
                panel = weight.values(mx.clip(moved, *weight.limits), rows)
                made = matmul(parts[copy], panel.T)
                columns[copy].append(made if bias is None else made + bias[rows])
                (seed,) = mx.depends([seed], [made])
    copies = [mx.concatenate(parts, axis=-1) for parts in columns]
    return mx.reshape(mx.concatenate(copies), (*x.shape[:-1], -1))


def _first_rounding(table: mx.array, drawn: mx.array) -> mx.array:
    """Q1 of each word: int32 (count), by the alias table int32 (2^t, 2) of ``core.grid``."""
    entries = mx.view(table, mx.uint32)
    log = table.shape[0].bit_length() - 1
    own = entries[drawn >> (32 - log)]
    alias = (drawn << log) >= own[:, 0]
    packed = mx.where(alias, own[:, 1] >> 16, own[:, 1])
    return mx.view(packed.astype(mx.uint8), mx.int8).astype(mx.int32)


def words(
    seed: mx.array, tensor_id: mx.array, query: int, step: mx.array, count: int, start: int = 0
) -> mx.array:
    """The words of ``count`` elements from ``start`` on (``core.rng.words``): uint32 (count).

    Args:
        seed, tensor_id, step: int64 (1). start: a multiple of four.
    """

    def wide(value: int) -> mx.array:
        return mx.array(value, mx.uint64)

    low, half = wide(0xFFFFFFFF), wide(32)
    key = mx.view(seed, mx.uint64)
    k0, k1 = key & low, key >> half
    c0 = mx.arange(start // 4, -(-(start + count) // 4)).astype(mx.uint64)
    c1, c2, c3 = tensor_id.astype(mx.uint64), wide(query), step.astype(mx.uint64)
    for _ in range(rng.ROUNDS):
        first, second = c0 * wide(rng.MULTIPLIERS[0]), c2 * wide(rng.MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            (second >> half) ^ c1 ^ k0,
            second & low,
            (first >> half) ^ c3 ^ k1,
            first & low,
        )
        k0, k1 = (k0 + wide(rng.KEY_STEPS[0])) & low, (k1 + wide(rng.KEY_STEPS[1])) & low
    return mx.flatten(mx.stack([c0, c1, c2, c3], axis=1)).astype(mx.uint32)[:count]


def _round_activations(x: mx.array, format: mx.array) -> mx.array:
    """Implement ``core.activation_grids.rounded``."""
    threshold, scale, float_scale = format
    steps = mx.round(mx.clip(x / scale, -LARGEST_STEP, LARGEST_STEP)) * scale
    magnitude = mx.minimum(mx.abs(x / float_scale), LARGEST_FLOAT)
    power = mx.view(mx.view(magnitude, mx.int32) & EXPONENT, mx.float32)
    shift = mx.maximum(power, LEAST_NORMAL) * ROUNDS_TO_3_BITS
    floats = (magnitude + shift - shift) * float_scale
    return mx.where(mx.abs(x) <= threshold, steps, mx.where(x < 0, -floats, floats))
