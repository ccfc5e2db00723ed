"""The rules of the target ios-mlx for operators that move elements or make them from numbers, against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.mlx_arrays import assert_rule, by_rule, case, covered
from tests.support.tiny_models import fixed
from zoexport.ir.graphs import aten
from zoexport.targets.mlx.operators import shapes

X = 3 * fixed("x", (2, 3, 4))
LONG = fixed("long", (7, 2))
ONES = fixed("ones", (1, 3, 1, 2))
N = torch.arange(24).reshape(2, 3, 4)
MASK = X > 0
BEYOND = (1 << 63) - 1
FLOAT, HALF, LARGE, SMALL, BOOL = (
    torch.float32,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.bool,
)

VIEWS = [
    *(case(op.default, X) for op in (aten.alias, aten.clone, aten.contiguous, aten.detach)),
    case(aten.lift_fresh_copy.default, N),
    case(aten.dropout.default, X, 0.5, False),
    *(case(op.default, X, [2, -1]) for op in (aten.reshape, aten.view, aten._unsafe_view)),
    *(case(op.default, X, [-1]) for op in (aten.reshape, aten.view, aten._unsafe_view)),
    case(aten.view.default, X, [1, 2, 1, 3, 4]),
    case(aten.expand.default, ONES, [5, 3, 4, 2]),
    case(aten.expand.default, ONES, [-1, -1, 4, -1]),
    case(aten.expand.default, ONES, [2, 3, 1, 3, 1, 2]),
    case(aten.flatten.using_ints, X),
    case(aten.flatten.using_ints, X, 1),
    case(aten.flatten.using_ints, X, 0, -2),
    case(aten.flatten.using_ints, X, -2, -1),
    case(aten.unflatten.int, X, -1, [2, 2]),
    case(aten.unflatten.int, X, 2, [-1, 2]),
    case(aten.permute.default, X, [2, 0, 1]),
    case(aten.permute.default, X, [0, -1, -2]),
    case(aten.transpose.int, X, -1, -2),
    case(aten.transpose.int, X, 0, 2),
    case(aten.t.default, LONG),
    case(aten.t.default, X[0, 0]),
    case(aten.squeeze.default, ONES),
    case(aten.squeeze.dim, ONES, 0),
    case(aten.squeeze.dim, ONES, -2),
    case(aten.squeeze.dim, ONES, 1),
    case(aten.squeeze.dims, ONES, [0, 1, -2]),
    case(aten.unsqueeze.default, X, 0),
    case(aten.unsqueeze.default, X, -1),
    case(aten.unsqueeze.default, X, -2),
]
PARTS = [
    case(aten.select.int, X, 1, -1),
    case(aten.select.int, X, -1, 2),
    case(aten.slice.Tensor, X),
    case(aten.slice.Tensor, X, -1, 1, 3),
    case(aten.slice.Tensor, X, 1, 0, BEYOND),
    case(aten.slice.Tensor, X, 2, -3, -1),
    case(aten.slice.Tensor, X, 2, 1, 100, 2),
    case(aten.slice.Tensor, X, 2, 0, BEYOND, 3),
    case(aten.slice.Tensor, X, 2, 3, 1),
    case(aten.slice_scatter.default, X, X[:, :1] * 2, 1, 2, 3),
    case(aten.slice_scatter.default, X, X[..., :2] * 2, -1, 0, BEYOND, 2),
    case(aten.slice_scatter.default, X, X[..., -2:] * 2, 2, -2, BEYOND),
    case(aten.split.Tensor, LONG, 3),
    case(aten.split.Tensor, X, 2, -1),
    case(aten.split.Tensor, X, 10, 1),
    case(aten.split_with_sizes.default, LONG, [4, 1, 2]),
    case(aten.split_with_sizes.default, X, [1, 3], -1),
    case(aten.split_with_sizes.default, X, [3], 1),
    case(aten.split_with_sizes.default, X, [0, 4], 2),
    case(aten.chunk.default, LONG, 3),
    case(aten.chunk.default, X, 2, -1),
    case(aten.chunk.default, LONG, 5),
    case(aten.unbind.int, X),
    case(aten.unbind.int, X, -1),
    case(aten.cat.default, [X, X[:1]]),
    case(aten.cat.default, [X, X[..., :1], X], -1),
    case(aten.cat.default, [N, X], 1),
    case(aten.cat.default, [X, X[..., :0]], 2),
    case(aten.stack.default, [X, -X]),
    case(aten.stack.default, [X, -X], -1),
    case(aten.stack.default, [X, -X, X], 1),
    case(aten.repeat.default, X, [1, 2, 1]),
    case(aten.repeat.default, X, [2, 3, 1, 2]),
    case(aten.flip.default, X, [0]),
    case(aten.flip.default, X, [-1, 0]),
    case(aten.flip.default, X, []),
    case(aten.constant_pad_nd.default, X, [1, 2]),
    case(aten.constant_pad_nd.default, X, [0, 0, 1, 2], 3.5),
    case(aten.constant_pad_nd.default, X, [1, 0, 0, 1, 2, 0], float("-inf")),
    case(aten.constant_pad_nd.default, N, [1, 1], 7),
    case(aten.constant_pad_nd.default, MASK, [1, 1], 1),
    case(aten.tril.default, X),
    case(aten.tril.default, X, -1),
    case(aten.tril.default, MASK, 1),
    case(aten.triu.default, X),
    case(aten.triu.default, N, 1),
    case(aten.triu.default, X, -1),
]
MADE = [
    case(aten.arange.default, 5),
    case(aten.arange.default, 2.5),
    case(aten.arange.start, 2, 7),
    case(aten.arange.start_step, 1, 10, 3),
    case(aten.arange.start_step, 5, 0, -2),
    case(aten.arange.start_step, 0.0, 1.0, 0.25),
    case(aten.arange.default, 4, dtype=FLOAT),
    case(aten.arange.start, 0, 4, dtype=SMALL),
    case(aten.full.default, [2, 3], 1.5),
    case(aten.full.default, [2, 3], 2),
    case(aten.full.default, [2], True),
    case(aten.full.default, [], float("-inf")),
    case(aten.full.default, [2], 1, dtype=FLOAT),
    case(aten.full.default, [2], 0, dtype=BOOL),
    case(aten.full_like.default, X, 2),
    case(aten.full_like.default, N, 2.0),
    case(aten.full_like.default, X, 1, dtype=BOOL),
    case(aten.ones.default, [2, 3]),
    case(aten.ones.default, [2], dtype=BOOL),
    case(aten.ones_like.default, N),
    case(aten.ones_like.default, X, dtype=LARGE),
    case(aten.zeros.default, [2, 0]),
    case(aten.zeros.default, [3], dtype=LARGE),
    case(aten.zeros_like.default, MASK),
    case(aten.zeros_like.default, X, dtype=HALF),
    case(aten.scalar_tensor.default, 3),
    case(aten.scalar_tensor.default, float("-inf")),
    case(aten.scalar_tensor.default, 3, dtype=LARGE),
    case(aten.scalar_tensor.default, True, dtype=BOOL),
]
CAST = [
    case(aten.to.dtype, X, LARGE),
    case(aten.to.dtype, X, BOOL),
    case(aten.to.dtype, X, HALF),
    case(aten.to.dtype, MASK, FLOAT),
    case(aten.to.dtype, N, SMALL, False, True),
    case(aten.to.dtype, N, torch.uint8),
    case(aten.to.dtype, X, torch.float16),
    case(aten.to.other, X, N),
    case(aten.to.device, X, torch.device("cpu"), LARGE),
    case(aten.to.dtype_layout, X, dtype=LARGE),
    case(aten.to.dtype_layout, X),
    case(aten.type_as.default, X, N),
    case(aten.type_as.default, N, X),
    case(aten._to_copy.default, X),
    case(aten._to_copy.default, X, dtype=LARGE),
    case(aten._to_copy.default, N, dtype=FLOAT),
    case(aten._to_copy.default, N, dtype=BOOL),
]
CASES = [*VIEWS, *PARTS, *MADE, *CAST]


@pytest.mark.parametrize(("operator", "args", "kwargs"), CASES)
def test_rule(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert_rule(operator, args, kwargs)


def test_every_rule_has_a_case() -> None:
    assert covered(CASES) == set(shapes())


def test_double_precision_is_single() -> None:
    assert by_rule(aten.to.dtype, (X, torch.float64), {}).equal(X)
    assert by_rule(aten.full.default, ([2], 1), {"dtype": torch.float64}).equal(torch.ones(2))


@pytest.mark.parametrize(
    ("operator", "args", "message"),
    [
        (aten.dropout.default, (X, 0.5, True), "dropout while training"),
        (aten.constant_pad_nd.default, (X, [-1, 1]), "a negative padding"),
    ],
)
def test_refusal(operator: Any, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        by_rule(operator, args, {})
