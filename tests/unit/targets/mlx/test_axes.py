"""The rules of the target ios-mlx for operators over whole axes, and for places that are values, against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.mlx_arrays import assert_rule, by_rule, case, covered
from tests.support.tiny_models import fixed
from zoexport.ir.graphs import aten
from zoexport.targets.mlx.axes import indexing, reductions

X = 3 * fixed("x", (2, 3, 4))
N = (5 * X).long()
MASK = X > 0
WEIGHT, BIAS = fixed("weight", (4,)), fixed("bias", (4,))
WIDE_WEIGHT = fixed("weight", (3, 4))
LOWEST = torch.where(MASK, X, float("-inf"))
TIES = torch.tensor([[1, 3, 3, 2], [5, 5, 5, 5], [0, -1, -1, 0]])
FLOAT, LARGE = torch.float32, torch.int64

REDUCTIONS = [
    *(
        case(op, X, *args)
        for op in (aten.amax.default, aten.amin.default, aten.mean.dim, aten.sum.dim_IntList)
        for args in (([-1],), ([0, 2], True), ([],), ([-2, -1], False))
    ),
    case(aten.amax.default, X),
    case(aten.amin.default, N, [1]),
    case(aten.mean.default, X),
    case(aten.mean.dim, X, None, True),
    case(aten.mean.dim, N, [-1], True, dtype=FLOAT),
    case(aten.sum.default, X),
    case(aten.sum.default, MASK),
    case(aten.sum.dim_IntList, X, None),
    case(aten.sum.dim_IntList, MASK, [-1]),
    case(aten.sum.dim_IntList, N.int(), [-1]),
    case(aten.sum.dim_IntList, N, [0]),
    case(aten.sum.dim_IntList, N, [0], dtype=FLOAT),
    case(aten.cumsum.default, X, -1),
    case(aten.cumsum.default, X, 0),
    case(aten.cumsum.default, N, 1),
    case(aten.cumsum.default, MASK, 1),
    case(aten.cumsum.default, N.int(), -1),
    case(aten.cumsum.default, MASK, -1, dtype=FLOAT),
    case(aten.logsumexp.default, X, [-1]),
    case(aten.logsumexp.default, X, [0, 1], True),
    case(aten.logsumexp.default, 50 * X, [2]),
    case(aten.var.correction, X),
    case(aten.var.correction, X, [-1]),
    case(aten.var.correction, X, [-1], correction=0),
    case(aten.var.correction, X, [0, 2], correction=2, keepdim=True),
    case(aten.var.correction, X, [1], correction=None, keepdim=True),
    case(aten.var.correction, X, None, correction=0),
    case(aten.var.dim, X, [-1], False, True),
    case(aten.var.dim, X, [-1]),
    case(aten.var.default, X, False),
]
SOFTMAX = [
    *(
        case(op, X, dim, False)
        for op in (aten._softmax.default, aten._log_softmax.default)
        for dim in (-1, 0, 1)
    ),
    *(case(op.int, X, -1) for op in (aten.softmax, aten.log_softmax)),
    *(case(op.int, N, 1, FLOAT) for op in (aten.softmax, aten.log_softmax)),
    *(case(op, 50 * X, -1, False) for op in (aten._softmax.default, aten._log_softmax.default)),
    *(case(op, LOWEST, -1, False) for op in (aten._softmax.default, aten._log_softmax.default)),
]
NORMS = [
    case(aten.layer_norm.default, X, [4]),
    case(aten.layer_norm.default, X, [4], WEIGHT),
    case(aten.layer_norm.default, X, [4], WEIGHT, BIAS, 1e-2, True),
    case(aten.layer_norm.default, X, [4], None, BIAS),
    case(aten.native_layer_norm.default, X, [4], WEIGHT, BIAS, 1e-5),
    case(aten.native_layer_norm.default, X, [4], None, None, 1e-2),
    case(aten.native_layer_norm.default, X, [3, 4], WIDE_WEIGHT, None, 1e-5),
    case(aten.rms_norm.default, X, [4]),
    case(aten.rms_norm.default, X, [4], WEIGHT),
    case(aten.rms_norm.default, X, [4], WEIGHT, 1e-2),
    case(aten.rms_norm.default, 1e-4 * X, [4], None, None),
]
PLACES = [
    case(aten.gather.default, X, 1, torch.tensor([[[0, 2, 1, 1]], [[2, 2, 0, 1]]])),
    case(aten.gather.default, X, -1, torch.tensor([3, 0, 0]).expand(2, 3, 3)),
    case(aten.gather.default, X, 2, torch.tensor([[[1], [3]]])),
    case(aten.gather.default, X, 0, torch.tensor([[[1, 0]]]), sparse_grad=False),
    case(aten.index_select.default, X, 1, torch.tensor([2, 0, 2])),
    case(aten.index_select.default, X, -1, torch.tensor([3], dtype=torch.int32)),
    case(aten.index_select.default, X, -1, torch.tensor(3)),
    case(aten.index.Tensor, X, [torch.tensor([1, 0, 1])]),
    case(aten.index.Tensor, X, [torch.tensor([1, -1]), torch.tensor([0, -3])]),
    case(aten.index.Tensor, X, [None, torch.tensor([2, 0])]),
    case(aten.index.Tensor, X, [None, None, torch.tensor([[3], [0]])]),
    case(aten.index.Tensor, X, [torch.tensor([0, 1]), None, torch.tensor([3, 2])]),
    case(aten.index.Tensor, X, [None, torch.tensor([[0], [2]]), torch.tensor([1, 3])]),
    case(aten.index.Tensor, X, [torch.tensor([[1], [0]]), torch.tensor([0, 2])]),
    case(aten.index_put.default, X, [torch.tensor([1])], X[:1] * 2),
    case(aten.index_put.default, X, [None, torch.tensor([2, 0])], X[:, :2] * 2),
    case(aten.index_put.default, X, [torch.tensor([0, 1]), torch.tensor([-1, 0])], WEIGHT),
    case(aten.index_put.default, X, [torch.tensor([0])], torch.tensor(7.0)),
    case(aten.index_put.default, X, [torch.tensor([0, 1, 0])], X[[0, 1, 1]], True),
    case(aten.index_put.default, X, [None, torch.tensor([2, 2, 2])], X, True),
    case(aten.index_put.default, X, [torch.tensor([[0], [1]]), torch.tensor([1, 1])], BIAS, True),
    case(aten.argmax.default, TIES, -1),
    case(aten.argmax.default, TIES, 0, True),
    case(aten.argmax.default, TIES),
    case(aten.argmax.default, TIES, None, True),
    case(aten.argmax.default, X, 1),
]
CASES = [*REDUCTIONS, *SOFTMAX, *NORMS, *PLACES]


@pytest.mark.parametrize(("operator", "args", "kwargs"), CASES)
def test_rule(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert_rule(operator, args, kwargs)


def test_every_rule_has_a_case() -> None:
    assert covered(CASES) == set(reductions()) | set(indexing())


def test_the_lowest_index_of_a_tie_is_the_argmax() -> None:
    assert by_rule(aten.argmax.default, (TIES, -1), {}).tolist() == [1, 0, 0]
    row = torch.zeros(1000)
    row[[77, 500, 901]] = 1.0
    assert by_rule(aten.argmax.default, (row,), {}) == 77


@pytest.mark.parametrize(
    ("operator", "args", "message"),
    [
        (aten.layer_norm.default, (X, [3, 4]), "a norm over 2 axes"),
        (aten.rms_norm.default, (X, [3, 4]), "a norm over 2 axes"),
        (aten.index.Tensor, (X, [MASK]), "indices that are a mask"),
        (aten.index_put.default, (X, [MASK], torch.tensor(1.0)), "indices that are a mask"),
    ],
)
def test_refusal(operator: Any, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        by_rule(operator, args, {})
