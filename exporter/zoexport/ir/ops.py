"""The operators of namespace ``zoexport`` on the CPU of a computer, and what their results look like.

``zo_*`` give the same bits here and on devices. The semantic operators say what a graph means; a target replaces them
before lowering.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from zoexport.core import int4, rng
from zoexport.ir import activation_ops as _activations  # noqa: F401  (registers its operators)
from zoexport.ir import attention_ops as _attention  # noqa: F401  (registers its operators)
from zoexport.ir import grid_ops as _grid  # noqa: F401  (registers its operators)
from zoexport.ir import label_ops as _labels  # noqa: F401  (registers its operators)
from zoexport.ir import product_ops as _products  # noqa: F401  (registers its operators)
from zoexport.ir import recurrence_ops as _recurrences  # noqa: F401  (registers its operators)
from zoexport.ir import row_ops as _rows  # noqa: F401  (registers its operators)
from zoexport.ir import sparse_ops as _sparse  # noqa: F401  (registers its operators)
from zoexport.ir.declare import like, operator, semantic
from zoexport.ir.op_arguments import array_of, float_of, seed_of, u32

# --- zeroth-order state ---------------------------------------------------------------------------


@operator(lambda master: like(master))
def zo_update(
    master: Tensor,
    gradients: Tensor,
    learning_rate: Tensor,
    seed: Tensor,
    step: Tensor,
    tensor_id: int,
) -> Tensor:
    """master - (learning_rate/q) sum_j g_j z(step-1, j): the update of the step before the one evaluated.

    Args:
        master: float32, any shape.
        gradients: float32 (q); all zero means that nothing is pending, and master is returned as it is.
        learning_rate: float32 (1).
        seed: int64 (1), a u64. step: int64 (1), the step that is being evaluated.
        tensor_id: the slot's number in the noise specification.

    Returns:
        float32, shape of master. All arithmetic is float32, one rounding an operation, j ascending.

    Raises:
        ValueError: an argument of another dtype or shape; a gradient before the first step.
    """
    return _updated(rng.normals, master, gradients, learning_rate, seed, step, tensor_id)


@operator(lambda master: like(master))
def zo_update_signs(
    master: Tensor,
    gradients: Tensor,
    learning_rate: Tensor,
    seed: Tensor,
    step: Tensor,
    tensor_id: int,
) -> Tensor:
    """:func:`zo_update` along Rademacher signs."""
    return _updated(rng.signs, master, gradients, learning_rate, seed, step, tensor_id)


def _updated(
    noise: Callable[..., rng.Floats],
    master: Tensor,
    gradients: Tensor,
    learning_rate: Tensor,
    seed: Tensor,
    step: Tensor,
    tensor_id: int,
) -> Tensor:
    flat, g = array_of("master", master), array_of("gradients", gradients)
    rate, seed_number, step_number = (
        float_of("learning_rate", learning_rate),
        seed_of(seed),
        u32("step", step),
    )
    if g.size == 0:
        raise ValueError("gradients is empty; expected one for each query")
    if not g.any():
        return master.clone(memory_format=torch.contiguous_format)
    if step_number < 1:
        raise ValueError(f"step is {step_number}; expected at least 1 where a gradient is pending")
    total = g[0] * noise(seed_number, tensor_id, 0, step_number - 1, flat.size)
    for query in range(1, g.size):
        total = total + g[query] * noise(seed_number, tensor_id, query, step_number - 1, flat.size)
    scale = rate / np.float32(g.size)
    return torch.from_numpy(flat - scale * total).reshape(master.shape)


@operator(lambda master: like(master))
def zo_update_half(
    master: Tensor,
    gradients: Tensor,
    learning_rate: Tensor,
    seed: Tensor,
    step: Tensor,
    tensor_id: int,
) -> Tensor:
    """:func:`zo_update` of a master in float16, whose elements are rounded to nearest even in the end.

    Returns:
        float16, shape of master; a copy where nothing is pending.

    Raises:
        ValueError: as :func:`zo_update`.
    """
    if master.dtype != torch.float16:
        raise ValueError(f"master is {master.dtype}; expected float16")
    updated = zo_update(master.float(), gradients, learning_rate, seed, step, tensor_id)
    if not gradients.any():
        return master.clone(memory_format=torch.contiguous_format)
    return updated.half()


@operator(lambda master, queries: master.new_empty((2 * queries, *master.shape)))
def zo_perturb(
    master: Tensor,
    epsilon: Tensor,
    seed: Tensor,
    step: Tensor,
    tensor_id: int,
    queries: int,
) -> Tensor:
    """The perturbed copies of a slot: copy 2i is master + eps z_i, copy 2i+1 is master - eps z_i.

    Args:
        master: float32, any shape.
        epsilon: float32 (1). seed, step: int64 (1).
        tensor_id: the slot's number. queries: q.

    Returns:
        float32 (2q, *master.shape).

    Raises:
        ValueError: an argument of another dtype or shape, or out of range.
    """
    flat = array_of("master", master)
    moves = _moves(rng.normals, flat.size, epsilon, seed, step, tensor_id, queries)
    out = np.stack([flat + moves, flat - moves], axis=1)
    return torch.from_numpy(out).reshape((2 * queries, *master.shape))


@operator(lambda master, queries: master.new_empty((queries + 1, *master.shape)))
def zo_perturb_signs(
    master: Tensor,
    epsilon: Tensor,
    seed: Tensor,
    step: Tensor,
    tensor_id: int,
    queries: int,
) -> Tensor:
    """Copies of a slot along Rademacher signs: copy 0 is master, copy i + 1 is master + eps z_i.

    Returns:
        float32 (q + 1, *master.shape).

    Raises:
        ValueError: as :func:`zo_perturb`.
    """
    flat = array_of("master", master)
    moves = _moves(rng.signs, flat.size, epsilon, seed, step, tensor_id, queries)
    out = np.concatenate([flat[None], flat + moves])
    return torch.from_numpy(out).reshape((queries + 1, *master.shape))


def _moves(
    noise: Callable[..., rng.Floats],
    count: int,
    epsilon: Tensor,
    seed: Tensor,
    step: Tensor,
    tensor_id: int,
    queries: int,
) -> rng.Floats:
    """eps z of each query, float32 (q, count)."""
    eps, seed_number, step_number = float_of("epsilon", epsilon), seed_of(seed), u32("step", step)
    if queries < 1:
        raise ValueError(f"queries is {queries}; expected at least 1")
    return np.stack(
        [eps * noise(seed_number, tensor_id, query, step_number, count) for query in range(queries)]
    )


@operator(lambda master: master.new_empty((1, *master.shape)))
def zo_perturb_one(
    master: Tensor,
    epsilon: Tensor,
    sign: Tensor,
    seed: Tensor,
    step: Tensor,
    query: Tensor,
    tensor_id: int,
) -> Tensor:
    """One perturbed copy, the same bits as the one of :func:`zo_perturb`.

    Args:
        master: float32, any shape.
        epsilon: float32 (1). sign: float32 (1), +1 or -1.
        seed, step, query: int64 (1).
        tensor_id: the slot's number.

    Returns:
        float32 (1, *master.shape).

    Raises:
        ValueError: an argument of another dtype or shape, or out of range.
    """
    direction = float_of("sign", sign)
    if direction not in (np.float32(1), np.float32(-1)):
        raise ValueError(f"sign is {direction}; expected 1 or -1")
    flat, move = array_of("master", master), direction * float_of("epsilon", epsilon)
    z = rng.normals(seed_of(seed), tensor_id, u32("query", query), u32("step", step), flat.size)
    return torch.from_numpy(flat + move * z).reshape((1, *master.shape))


# --- weights -----------------------------------------------------------------------------


def _embedded(codes: Tensor, scales: Tensor, indices: Tensor) -> Tensor:
    return scales.new_empty((*indices.shape, 2 * codes.shape[1]), dtype=torch.float32)


@operator(_embedded)
def embedding_int4(codes: Tensor, scales: Tensor, indices: Tensor) -> Tensor:
    """Rows of a packed table: int64 (...) -> float32 (..., K)."""
    flat = indices.reshape(-1)
    if flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < codes.shape[0]:
        raise ValueError(f"indices leave the table of {codes.shape[0]} rows")
    rows = int4.dequantize_int4(codes[flat], scales[flat])
    return rows.reshape((*indices.shape, 2 * codes.shape[1]))


# --- semantic operators ---------------------------------------------------------------------------


@semantic(
    lambda codes, scales: scales.new_empty(
        (codes.shape[0], 2 * codes.shape[1]), dtype=torch.float32
    )
)
def dequantize_int4(codes: Tensor, scales: Tensor) -> Tensor:
    """codes uint8 (N, K/2) and scales bfloat16 (N, K/G) as float32 (N, K)."""
    return int4.dequantize_int4(codes, scales)


@semantic(lambda codes, scales: scales.new_empty(codes.shape))
def dequantize_int8(codes: Tensor, scales: Tensor) -> Tensor:
    """codes int8 (N, K) and scales float32 (N) as float32 (N, K)."""
    return int4.dequantize_int8(codes, scales)
