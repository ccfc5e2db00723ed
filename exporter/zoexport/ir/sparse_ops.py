"""The product with the few trained weights of a matrix whose rest is frozen; ``ops`` imports this module.

It gives the same bits here and on devices (``runtime_ops/kernels/sparse.h``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoexport.core import rng
from zoexport.ir.declare import like, operator, semantic
from zoexport.ir.op_arguments import array_of, float_of, seed_of, u32


@operator(lambda y: like(y))
def sparse_add_mm(
    y: Tensor,
    x: Tensor,
    values: Tensor,
    places: Tensor,
    range: Tensor,
    epsilon: Tensor,
    seed: Tensor,
    step: Tensor,
    tensor_id: int,
    queries: int,
    most: int,
) -> Tensor:
    """y + x W^T of a sparse W for all perturbed copies at once (SensZOQ, appendix F, SparseAddMM, equations 15 and 21).

    Args:
        y: float32 (..., N), the product with the frozen weight. x: float32 (..., K), the same rows. They are
            2 * queries copies of as many rows, one after the other.
        values: float16 (S), the trained weights of the whole model. places: int32 (S), n * K + k of each in its own W.
        range: int64 (2), [begin, end): the entries of this W, in ascending order of places.
        epsilon: float32 (1); 0 takes the values as they are, and the rows need be no copies.
        seed, step: int64 (1). tensor_id: the number of ``values`` in the noise specification, where entry e is
            element e.
        queries: q; copy 2i has v + (eps z_i), copy 2i+1 has v - (eps z_i).
        most: the most entries that ``range`` may have.

    Returns:
        float32 (..., N). All arithmetic is float32, one rounding an operation; the products of an output are added to
        it one after the other, in order of places.

    Raises:
        ValueError: an argument of another dtype or shape, or out of range.
    """
    begin, end = _check(y, x, values, places, range, queries, most)
    eps, seed_number, step_number = float_of("epsilon", epsilon), seed_of(seed), u32("step", step)

    def noise(query: int) -> NDArray[np.float32]:
        return rng.normals(seed_number, tensor_id, query, step_number, end - begin, start=begin)

    return _added(y, x, values[begin:end], places[begin:end], eps, queries, noise)


@semantic(lambda y: like(y))
def sparse_add_mm_given(
    y: Tensor,
    x: Tensor,
    values: Tensor,
    places: Tensor,
    range: Tensor,
    epsilon: Tensor | None,
    noise: Tensor | None,
    most: int,
) -> Tensor:
    """:func:`sparse_add_mm` with the noise of all values, float32 (q, S), for who cannot make it.

    Without epsilon and noise it takes the values as they are.
    """
    if epsilon is None or noise is None:
        begin, end = _check(y, x, values, places, range, 1, most)
        given = values[begin:end], places[begin:end], np.float32(0)
        return _added(y, x, *given, 1, lambda query: np.empty(0, np.float32))
    if noise.dtype != torch.float32 or noise.dim() != 2 or noise.shape[1:] != values.shape:
        raise ValueError(
            f"noise is {noise.dtype} {tuple(noise.shape)}; expected float32 (q, {values.numel()})"
        )
    queries = noise.shape[0]
    begin, end = _check(y, x, values, places, range, queries, most)
    own = array_of("noise", noise).reshape(noise.shape)[:, begin:end]
    eps = float_of("epsilon", epsilon)
    return _added(
        y, x, values[begin:end], places[begin:end], eps, queries, lambda query: own[query]
    )


def _check(
    y: Tensor,
    x: Tensor,
    values: Tensor,
    places: Tensor,
    span: Tensor,
    queries: int,
    most: int,
) -> tuple[int, int]:
    """Refuse what does not belong together; the range, as numbers."""
    if y.dim() < 1 or y.dim() != x.dim() or y.shape[:-1] != x.shape[:-1]:
        raise ValueError(
            f"y is {tuple(y.shape)} and x {tuple(x.shape)}; expected (..., N) and (..., K) with the same rows"
        )
    if values.dtype != torch.float16 or values.dim() != 1:
        raise ValueError(f"values is {values.dtype} {tuple(values.shape)}; expected float16 (S)")
    if places.dtype != torch.int32 or places.shape != values.shape:
        raise ValueError(
            f"places is {places.dtype} {tuple(places.shape)}; expected int32 {tuple(values.shape)}"
        )
    if span.dtype != torch.int64 or span.shape != (2,):
        raise ValueError(f"range is {span.dtype} {tuple(span.shape)}; expected int64 (2)")
    if queries < 1:
        raise ValueError(f"queries is {queries}; expected at least 1")
    begin, end = (int(number) for number in span)
    if not 0 <= begin <= end <= values.numel() or end - begin > most:
        raise ValueError(
            f"range is [{begin}, {end}); expected at most {most} entries of {values.numel()}"
        )
    return begin, end


def _added(
    y: Tensor,
    x: Tensor,
    values: Tensor,
    places: Tensor,
    eps: np.float32,
    queries: int,
    noise: Callable[[int], NDArray[np.float32]],
) -> Tensor:
    """y with the products of one W's entries, in every copy."""
    count, columns, width = math.prod(y.shape[:-1]), y.shape[-1], x.shape[-1]
    out, rows = array_of("y", y).reshape(count, columns), array_of("x", x).reshape(count, width)
    out = out.copy()
    place = places.numpy().astype(np.int64)
    if place.size and not (
        place[0] >= 0 and bool((np.diff(place) > 0).all()) and place[-1] < columns * width
    ):
        raise ValueError(f"places do not ascend in [0, {columns * width})")
    n, k = np.divmod(place, max(width, 1))
    weight = values.float().numpy()
    if eps == 0:
        _add(out, rows, weight, n, k)
        return torch.from_numpy(out).reshape(y.shape)
    if count % (2 * queries):
        raise ValueError(f"{count} rows; expected 2 * {queries} copies of as many")
    for copy, (part, given) in enumerate(
        zip(np.split(out, 2 * queries), np.split(rows, 2 * queries), strict=True)
    ):
        move = eps * noise(copy // 2)
        _add(part, given, weight + move if copy % 2 == 0 else weight - move, n, k)
    return torch.from_numpy(out).reshape(y.shape)


def _add(
    out: NDArray[np.float32],
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    n: NDArray[np.int64],
    k: NDArray[np.int64],
) -> None:
    """Add the entries in order: at once those that are first in their column, then the second ones, and so on."""
    for at in _turns(n):
        out[:, n[at]] = out[:, n[at]] + weight[at] * x[:, k[at]]


def _turns(n: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Return the entries that are first, second, ... of those with the same n; n ascends."""
    index = np.arange(n.size)
    first = np.searchsorted(n, n)
    for turn in np.unique(index - first):
        yield index[index - first == turn]
