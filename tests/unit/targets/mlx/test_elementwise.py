"""The rules of the target ios-mlx for operators on each element alone, against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.mlx_arrays import assert_rule, by_rule, case, covered
from tests.support.tiny_models import fixed
from zoexport.ir.graphs import aten
from zoexport.targets.mlx.operators import elementwise

X, Y = 3 * fixed("x", (2, 3, 4)), 3 * fixed("y", (3, 1))
FAR = torch.tensor([-100.0, -30.0, -1.0, -0.0, 0.0, 1e-4, 1.0, 30.0, 100.0])
POSITIVE = X.abs() + 0.1
HALVES = torch.arange(-7, 8) / 2
N, J = torch.arange(-7, 8), torch.arange(1, 16) % 4 + 1
TRUE, FALSE = torch.tensor([True, False, True, False]), torch.tensor([True, True, False, False])
MASK = X > 0
HALF = fixed("half", (4,), torch.bfloat16)

UNARY = [
    *(case(op.default, X) for op in (aten.abs, aten.cos, aten.erf, aten.neg, aten.sign, aten.sin)),
    *(case(op.default, X) for op in (aten.exp, aten.expm1, aten.reciprocal)),
    *(case(op.default, FAR) for op in (aten.relu, aten.sigmoid, aten.silu, aten.tanh, aten.erf)),
    *(case(op.default, POSITIVE) for op in (aten.log, aten.log1p, aten.rsqrt, aten.sqrt)),
    *(case(op.default, HALVES) for op in (aten.ceil, aten.floor, aten.round, aten.sign)),
    *(case(op.default, N) for op in (aten.abs, aten.neg, aten.sign, aten.sigmoid, aten.relu)),
    *(case(op.default, J) for op in (aten.reciprocal, aten.sqrt, aten.rsqrt, aten.log, aten.cos)),
    case(aten.expm1.default, torch.tensor([1e-6, -1e-6])),
    case(aten.log1p.default, torch.tensor([1e-6, -1e-6])),
    case(aten.round.decimals, X, decimals=1),
    case(aten.gelu.default, FAR),
    case(aten.gelu.default, X),
    case(aten.gelu.default, FAR, approximate="tanh"),
    case(aten.gelu.default, X, approximate="tanh"),
    case(aten.elu.default, FAR),
    case(aten.elu.default, X, 0.5, 2.0, 3.0),
    case(aten.softplus.default, FAR),
    case(aten.softplus.default, X, 2.0, 1.0),
    case(aten.bitwise_not.default, TRUE),
    case(aten.bitwise_not.default, N),
    case(aten.logical_not.default, TRUE),
    case(aten.logical_not.default, N),
    case(aten.logical_not.default, FAR),
]
ARITHMETIC = [
    case(aten.add.Tensor, X, Y),
    case(aten.add.Tensor, X, Y, alpha=-2),
    case(aten.add.Tensor, X, 1.5),
    case(aten.add.Tensor, N, J, alpha=3),
    case(aten.add.Tensor, N, 0.5),
    case(aten.add.Tensor, N, X[0, 0, 0]),
    case(aten.add.Tensor, TRUE, 1),
    case(aten.add.Tensor, TRUE, FALSE),
    case(aten.add.Scalar, X, 1, 2),
    case(aten.sub.Tensor, X, Y),
    case(aten.sub.Tensor, X, Y, alpha=0.5),
    case(aten.sub.Tensor, N, 1),
    case(aten.sub.Scalar, X, 1.0, 2),
    case(aten.rsub.Scalar, X, 1.0),
    case(aten.rsub.Scalar, X, 1.0, 2),
    case(aten.rsub.Tensor, X, Y, alpha=2),
    case(aten.mul.Tensor, X, Y),
    case(aten.mul.Tensor, X, 0.5),
    case(aten.mul.Tensor, X, MASK),
    case(aten.mul.Tensor, TRUE, FALSE),
    case(aten.mul.Tensor, TRUE, 2),
    case(aten.mul.Tensor, N, J),
    case(aten.mul.Scalar, N, 2),
    case(aten.mul.Scalar, N, 0.5),
    case(aten.div.Tensor, X, Y),
    case(aten.div.Tensor, N, J),
    case(aten.div.Tensor, N, 2),
    case(aten.div.Scalar, X, 7),
    case(aten.div.Tensor_mode, N, J, rounding_mode="floor"),
    case(aten.remainder.Scalar, N, 3),
    case(aten.div.Tensor_mode, N, 2, rounding_mode="floor"),
    case(aten.div.Tensor_mode, X, Y, rounding_mode="floor"),
    case(aten.div.Scalar_mode, X, 2, rounding_mode="floor"),
    case(aten.div.Tensor_mode, X, Y, rounding_mode=None),
    *(case(aten.pow.Tensor_Scalar, POSITIVE, n) for n in (2, 3, 2.0, 0.5, -0.5, -1, 1.7, 0)),
    *(case(aten.pow.Tensor_Scalar, X, n) for n in (2, 3.0, -2, 4)),
    *(case(aten.pow.Tensor_Scalar, N, n) for n in (2, 3, 2.0, 3.0)),
    case(aten.pow.Scalar, 10000.0, X[0, 0] / 3),
    case(aten.pow.Tensor_Tensor, POSITIVE, Y),
    case(aten.pow.Tensor_Tensor, POSITIVE, torch.tensor(2.0)),
]
COMPARISONS = [
    *(
        case(getattr(packet, overload), *pair)
        for packet in (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)
        for overload, pair in (("Tensor", (N, J)), ("Scalar", (X, 0.5)), ("Scalar", (N, 3)))
    ),
    case(aten.lt.Scalar, N, 0.5),
    case(aten.ge.Tensor, X, Y),
    *(case(packet.default, X, Y) for packet in (aten.maximum, aten.minimum)),
    *(case(packet.default, N, J) for packet in (aten.maximum, aten.minimum)),
    *(case(packet.default, X, Y) for packet in (aten.logical_and, aten.logical_or)),
    *(case(packet.default, TRUE, FALSE) for packet in (aten.logical_and, aten.logical_or)),
    *(case(packet.Tensor, TRUE, FALSE) for packet in (aten.bitwise_and, aten.bitwise_or)),
    *(case(packet.Tensor, N, J) for packet in (aten.bitwise_and, aten.bitwise_or)),
    *(case(packet.Scalar, N, 6) for packet in (aten.bitwise_and, aten.bitwise_or)),
    case(aten.bitwise_and.Tensor, TRUE, torch.tensor([1, 2, 3, 4])),
    case(aten.clamp.default, X, -1.0, 2.0),
    case(aten.clamp.default, X, 0.5),
    case(aten.clamp.default, X, None, 0.5),
    case(aten.clamp.default, X, max=0.5),
    case(aten.clamp.default, N, -2, 3),
    case(aten.clamp.default, N, 0.5),
    case(aten.clamp.Tensor, X, Y, Y + 1),
    case(aten.clamp_min.default, X, 0.5),
    case(aten.clamp_min.default, N, 2),
    case(aten.clamp_min.Tensor, X, Y),
    case(aten.clamp_max.default, X, 0.5),
    case(aten.clamp_max.Tensor, X, Y),
    case(aten.where.self, MASK, X, Y),
    case(aten.where.self, TRUE, torch.tensor(0), N[:4]),
    case(aten.where.self, TRUE, X[0, 0], N[:4]),
    case(aten.where.Scalar, TRUE, 1.0, 0.0),
    case(aten.where.Scalar, TRUE, 1, 0),
    case(aten.where.ScalarSelf, MASK, float("-inf"), X),
    case(aten.where.ScalarOther, MASK, X, 0.0),
    case(aten.masked_fill.Scalar, X, MASK, float("-inf")),
    case(aten.masked_fill.Scalar, X, MASK[0, :, :1], 0),
    case(aten.masked_fill.Scalar, N, J > 2, 7.0),
    case(aten.masked_fill.Scalar, HALF, TRUE, -1.0),
    case(aten.masked_fill.Tensor, HALF, TRUE, torch.tensor(-1.0)),
    case(aten.masked_fill.Tensor, X, MASK, torch.tensor(3.0)),
]
CASES = [*UNARY, *ARITHMETIC, *COMPARISONS]


@pytest.mark.parametrize(("operator", "args", "kwargs"), CASES)
def test_rule(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert_rule(operator, args, kwargs)


def test_every_rule_has_a_case() -> None:
    assert covered(CASES) == set(elementwise())


def test_rounding_towards_zero_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="rounding_mode=trunc"):
        by_rule(aten.div.Tensor_mode, (X, Y), {"rounding_mode": "trunc"})


def test_what_is_not_a_number_stays_so() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf")])
    for operator in (aten.abs.default, aten.exp.default, aten.relu.default, aten.tanh.default):
        assert_rule(operator, (x,), {})
    assert_rule(aten.maximum.default, (x, torch.zeros(3)), {})
    assert_rule(aten.clamp.default, (x, -1.0, 1.0), {})
