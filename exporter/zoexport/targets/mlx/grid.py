"""What products of perturbed integers, and activations on 8-bit grids, are in MLX (see ``operators``).

A perturbation is drawn where it is added, by the counters of the noise specification (docs/rng.md) in 64-bit integers:
it is that of ``ir.grid_ops``, and no input of a function.
"""

from __future__ import annotations

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
from zoexport.targets.mlx.packing import matmul
from zoexport.targets.rules import Rule


def grids() -> dict[Any, Rule]:
    """Operators over integers that are trained, and beside them."""
    return {
        zo.grid_linear_int4: _linear_int4,
        zo.grid_linear_int8: _linear_int8,
        zo.round_activations: _round_activations,
    }


def _linear_int4(x: mx.array, codes: mx.array, scales: mx.array, *rest: Any) -> mx.array:
    """codes uint8 (N, K/2), scales (N, K/group)."""
    nibbles = mx.stack([codes & 15, codes >> 4], axis=-1)
    integers = mx.flatten(nibbles, -2, -1).astype(mx.int32) - 8

    def weight(moved: mx.array) -> mx.array:
        groups = mx.unflatten(moved.astype(mx.float32), 1, (scales.shape[1], -1))
        return mx.flatten(groups * scales.astype(mx.float32)[..., None], 1, 2)

    return _product(x, integers, (-8, 7), weight, *rest)


def _linear_int8(x: mx.array, codes: mx.array, scales: mx.array, *rest: Any) -> mx.array:
    """codes int8 (N, K), scales float32 (N)."""

    def weight(moved: mx.array) -> mx.array:
        return moved.astype(mx.float32) * scales[:, None]

    return _product(x, codes.astype(mx.int32), (-127, 127), weight, *rest)


def _product(
    x: mx.array,
    integers: mx.array,
    limits: tuple[int, int],
    weight: Callable[[mx.array], mx.array],
    bias: mx.array | None,
    table: mx.array,
    number: mx.array,
    epsilon: mx.array,
    seed: mx.array,
    step: mx.array,
    queries: int,
) -> mx.array:
    """As ``ir.grid_ops`` has it; with epsilon zero nothing is added."""
    results = []
    parts = mx.split(mx.reshape(x, (-1, x.shape[-1])), 2 * queries)
    for copy, part in enumerate(parts):
        if copy % 2 == 0:
            drawn = words(seed, number, copy // 2, step, integers.size)
            first = mx.reshape(_first_rounding(table, drawn), integers.shape)
            move = mx.where(epsilon == 0, 0, first)
        moved = mx.clip(integers + move if copy % 2 == 0 else integers - move, *limits)
        made = matmul(part, weight(moved).T)
        results.append(made if bias is None else made + bias)
    return mx.reshape(mx.concatenate(results), (*x.shape[:-1], -1))


def _first_rounding(table: mx.array, drawn: mx.array) -> mx.array:
    """Q1 of each word: int32 (count), by the alias table int32 (2^t, 2) of ``core.grid``."""
    entries = mx.view(table, mx.uint32)
    log = table.shape[0].bit_length() - 1
    own = entries[drawn >> (32 - log)]
    alias = (drawn << log) >= own[:, 0]
    packed = mx.where(alias, own[:, 1] >> 16, own[:, 1])
    return mx.view(packed.astype(mx.uint8), mx.int8).astype(mx.int32)


def words(seed: mx.array, tensor_id: mx.array, query: int, step: mx.array, count: int) -> mx.array:
    """The words of the elements 0 to ``count`` (``core.rng.words``): uint32 (count).

    Args:
        seed, tensor_id, step: int64 (1).
    """

    def wide(value: int) -> mx.array:
        return mx.array(value, mx.uint64)

    low, half = wide(0xFFFFFFFF), wide(32)
    key = mx.view(seed, mx.uint64)
    k0, k1 = key & low, key >> half
    c0 = mx.arange(-(-count // 4)).astype(mx.uint64)
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
    """As ``core.activation_grids.rounded`` has it."""
    threshold, scale, float_scale = format
    steps = mx.round(mx.clip(x / scale, -LARGEST_STEP, LARGEST_STEP)) * scale
    magnitude = mx.minimum(mx.abs(x / float_scale), LARGEST_FLOAT)
    power = mx.view(mx.view(magnitude, mx.int32) & EXPONENT, mx.float32)
    shift = mx.maximum(power, LEAST_NORMAL) * ROUNDS_TO_3_BITS
    floats = (magnitude + shift - shift) * float_scale
    return mx.where(mx.abs(x) <= threshold, steps, mx.where(x < 0, -floats, floats))
