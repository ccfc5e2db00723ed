"""Every operation of the Core ML evaluator, saved in a package and read back, against PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.coreml_cases import (
    WHOLE,
    Case,
    Compiled,
    X,
    case,
    compiled_fixture,
    integers,
    op,
    unary,
)
from tests.support.coreml_packages import int4, mb, quantized, types
from tests.support.tiny_models import fixed
from zoexport.testing import moves
from zoexport.testing.operations import RULES

Y = 2 * fixed("y", (3, 1))
POSITIVE = X.abs() + 0.125
HALVES = (2 * X).round() / 2
DIVISOR = torch.tensor([[3], [-2], [5]], dtype=torch.int32)


def binary(kind: str, expected: Any, x: torch.Tensor = X, y: torch.Tensor = Y) -> Any:
    return case(op(kind, "x", "y"), expected, x, y)


def truth(kind: str, expected: Any, x: torch.Tensor = HALVES, y: torch.Tensor | None = None) -> Any:
    """A comparison; a function has no booleans as outputs, so they are cast."""
    other = x.flip(-1) if y is None else y
    return case(
        lambda x, y, dtype: mb.cast(x=getattr(mb, kind)(x=x, y=y), dtype="int32"),
        expected,
        x,
        other,
    )


def logic(kind: str, expected: Any) -> Any:
    """A logical operation of the booleans that the inputs are where they are not 0."""
    return case(
        lambda x, y, dtype: mb.cast(
            x=getattr(mb, kind)(x=mb.cast(x=x, dtype="bool"), y=mb.cast(x=y, dtype="bool")),
            dtype="int32",
        ),
        expected,
        integers(0, 0, 1, 3),
        integers(0, 2, 0, 1),
    )


def through(kind: str, expected: torch.dtype, x: torch.Tensor) -> Case:
    """A cast to a type, and back to one that an output can be of."""
    back = "fp32" if expected.is_floating_point else "int32"

    def build(x: Any, dtype: Any) -> Any:
        floats = "fp16" if dtype is np.float16 else "fp32"
        return mb.cast(x=mb.cast(x=x, dtype=kind), dtype=back if back == "int32" else floats)

    return case(
        build, lambda x: x.to(expected).to(torch.float32 if back == "fp32" else torch.int32), x
    )


ELEMENTWISE = [
    unary("abs", torch.abs),
    unary("abs", torch.abs, WHOLE),
    unary("ceil", torch.ceil),
    unary("clip", lambda x: x.clamp(-0.5, 1.5), alpha=-0.5, beta=1.5),
    unary("cos", torch.cos),
    unary("elu", lambda x: F.elu(x, 0.5), alpha=0.5),
    unary("erf", torch.erf),
    unary("exp", torch.exp),
    unary("floor", torch.floor),
    unary("gelu", F.gelu, mode="EXACT"),
    unary("gelu", lambda x: F.gelu(x, approximate="tanh"), mode="TANH_APPROXIMATION"),
    unary("gelu", lambda x: x * torch.sigmoid(1.702 * x), mode="SIGMOID_APPROXIMATION"),
    unary("identity", lambda x: x),
    unary("inverse", lambda x: 1 / (x + 0.25), POSITIVE, epsilon=0.25),
    unary("leaky_relu", lambda x: F.leaky_relu(x, 0.25), alpha=0.25),
    unary("log", torch.log, POSITIVE, epsilon=0.0),
    unary("log", lambda x: torch.log(x + 0.25), POSITIVE, epsilon=0.25),
    unary("relu", torch.relu),
    unary("round", torch.round, HALVES),
    unary("rsqrt", lambda x: torch.rsqrt(x + 0.25), POSITIVE, epsilon=0.25),
    unary("sigmoid", torch.sigmoid),
    unary("sign", torch.sign, HALVES),
    unary("silu", F.silu),
    unary("sin", torch.sin),
    unary("softplus", F.softplus),
    unary("sqrt", torch.sqrt, POSITIVE),
    unary("square", torch.square),
    unary("tanh", torch.tanh),
    binary("add", torch.add),
    binary("add", torch.add, WHOLE, DIVISOR),
    binary("floor_div", lambda x, y: torch.floor(x / y), HALVES, torch.tensor([[0.5], [-2], [4]])),
    binary("floor_div", lambda x, y: torch.floor_divide(x, y), WHOLE, DIVISOR),
    binary("maximum", torch.maximum),
    binary("minimum", torch.minimum),
    binary(
        "mod", lambda x, y: x - y * torch.floor(x / y), HALVES, torch.tensor([[0.5], [-2], [4]])
    ),
    binary("mod", torch.remainder, WHOLE, DIVISOR),
    binary("mul", torch.mul),
    binary("mul", torch.mul, WHOLE, DIVISOR),
    binary("pow", torch.pow, POSITIVE),
    binary("real_div", torch.div),
    binary("real_div", lambda x, y: (x.double() / y).trunc().int(), WHOLE, DIVISOR),
    binary("sub", torch.sub),
    truth("equal", torch.eq),
    truth("equal", torch.eq, WHOLE),
    truth("greater", torch.gt),
    truth("greater_equal", torch.ge),
    truth("less", torch.lt),
    truth("less_equal", torch.le),
    truth("not_equal", torch.ne),
    logic("logical_and", torch.logical_and),
    logic("logical_or", torch.logical_or),
    case(
        lambda x, dtype: mb.cast(x=mb.logical_not(x=mb.cast(x=x, dtype="bool")), dtype="int32"),
        torch.logical_not,
        integers(0, 2),
    ),
    case(
        lambda x, y, dtype: mb.select(cond=mb.greater(x=x, y=y), a=x, b=y),
        lambda x, y: torch.where(x > y, x, y.expand_as(x)),
        X,
        Y,
    ),
    through("int32", torch.int32, X),
    through("bool", torch.bool, HALVES),
    through("int8", torch.int8, X),
    through("uint8", torch.uint8, POSITIVE),
    through("int16", torch.int16, 1000 * X),
    through("uint16", torch.uint16, 10000 * POSITIVE.clamp(max=6.5)),
    through("uint16", torch.uint16, integers(0, 40000)),
    through("fp16", torch.float16, X),
    through("fp32", torch.float32, WHOLE),
]


def along(kind: str, expected: Any, x: torch.Tensor = X) -> list[Case]:
    """A reduction over some axes, kept, and over all, dropped."""
    every = list(range(x.dim()))
    return [
        unary(kind, lambda x: expected(x, [-1], False), x, axes=[-1], keep_dims=False),
        unary(kind, lambda x: expected(x, [0, 2], True), x, axes=[0, 2], keep_dims=True),
        unary(kind, lambda x: expected(x, every, False), x),
    ]


def normalized(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    centred = x - x.mean(axes, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(axes, keepdim=True) + 0.25)


#: In 64ths, which fp16 holds exactly.
SCALES, SHIFTS = ((64 * fixed(name, (4,))).round() / 64 for name in ("scales", "shifts"))
OVER_AXES = [
    *along("reduce_log_sum_exp", torch.logsumexp, 20 * X),
    *along("reduce_max", torch.amax),
    *along("reduce_max", torch.amax, WHOLE),
    *along("reduce_mean", torch.mean),
    *along("reduce_min", torch.amin),
    *along("reduce_sum", torch.sum),
    *along("reduce_sum", torch.sum, WHOLE),
    *along("reduce_sum_square", lambda x, axes, keep: x.square().sum(axes, keep)),
    unary("reduce_argmax", lambda x: x.argmax(1), axis=1, keep_dims=False),
    unary("reduce_argmax", lambda x: x.argmax(-1, keepdim=True), axis=-1, keep_dims=True),
    unary("softmax", lambda x: x.softmax(-1), axis=-1),
    unary("softmax", lambda x: x.softmax(1), axis=1),
    unary("cumsum", lambda x: x.cumsum(1), axis=1, exclusive=False, reverse=False),
    unary("cumsum", lambda x: x.cumsum(-1, dtype=torch.int32), WHOLE, axis=-1),
    unary("cumsum", lambda x: x.cumsum(1) - x, HALVES, axis=1, exclusive=True, reverse=False),
    unary(
        "cumsum",
        lambda x: (x.flip(2).cumsum(2) - x.flip(2)).flip(2),
        HALVES,
        axis=-1,
        exclusive=True,
        reverse=True,
    ),
    unary("layer_norm", lambda x: normalized(x, [0, 2]), axes=[0, 2], epsilon=0.25),
    case(
        lambda x, dtype: mb.layer_norm(
            x=x,
            axes=[-1],
            gamma=SCALES.numpy().astype(dtype),
            beta=SHIFTS.numpy().astype(dtype),
            epsilon=dtype(0.25),
        ),
        lambda x: normalized(x, [-1]) * SCALES + SHIFTS,
        X,
    ),
]


def product(
    x: tuple[int, ...], y: tuple[int, ...], *, left: bool = False, right: bool = False
) -> Case:
    def expected(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.mT if left else x) @ (y.mT if right else y)

    build = op("matmul", "x", "y", transpose_x=left, transpose_y=right)
    return case(build, expected, fixed("left", x), fixed("right", y))


def attention(mask: torch.Tensor | None) -> Case:
    query, key, value = fixed("q", (2, 3, 5, 4)), fixed("k", (2, 3, 6, 4)), fixed("v", (2, 3, 6, 8))

    def build(q: Any, k: Any, v: Any, *masks: Any, dtype: Any) -> Any:
        given = {}
        if mask is not None:
            boolean = mask.dtype == torch.int32
            given["attn_mask"] = mb.cast(x=masks[0], dtype="bool") if boolean else masks[0]
        return mb.scaled_dot_product_attention(query=q, key=k, value=v, **given)

    def expected(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: torch.Tensor
    ) -> torch.Tensor:
        scores = q @ k.mT / math.sqrt(4)
        if mask is not None and mask.dtype == torch.int32:
            scores = torch.where(masks[0] != 0, scores, -math.inf)
        elif mask is not None:
            scores = scores + masks[0]
        return scores.softmax(-1) @ v

    return case(build, expected, query, key, value, *([] if mask is None else [mask]))


def quantized_weight(
    codes: np.ndarray, scale: np.ndarray, offset: np.ndarray | None = None
) -> Case:
    """A quantized weight times an input. ``scale`` is such that fp16 holds the weight exactly."""

    def spread(values: np.ndarray) -> np.ndarray:
        for axis, size in enumerate(codes.shape):
            values = np.repeat(values, size // values.shape[axis], axis)
        return values.astype(np.float32)

    exact = codes.astype(np.float32)
    if offset is not None:
        exact = exact - spread(offset)
    exact = exact * spread(scale)

    def build(x: Any, dtype: Any) -> Any:
        return mb.mul(x=x, y=quantized(codes, scale.astype(dtype), offset))

    return case(build, lambda x: x * torch.from_numpy(exact), fixed("times", (1,)))


CODES = np.arange(6 * 8).reshape(6, 8)
SIGNED, UNSIGNED = int4(CODES % 16 - 8), (CODES % 16).astype(types.np_uint4_dtype)
BYTES = (5 * CODES - 120).astype(np.int8)
BLOCKS = np.array([0.25, 1, 2, -0.5, 4, 1, 0.125, 8, 1, 2, 0.5, 1]).reshape(6, 2)
PRODUCTS = [
    product((2, 3), (3, 4)),
    product((5, 2, 3), (5, 4, 3), right=True),
    product((5, 3, 2), (5, 3, 4), left=True),
    product((2, 1, 3, 2), (5, 4, 3), left=True, right=True),
    case(
        lambda x, dtype: mb.linear(
            x=x,
            weight=np.outer(BLOCKS[:, 0], SCALES).astype(dtype),
            bias=BLOCKS[:, 1].astype(dtype),
        ),
        lambda x: F.linear(
            x,
            torch.from_numpy(np.outer(BLOCKS[:, 0], SCALES)).float(),
            torch.from_numpy(BLOCKS[:, 1]).float(),
        ),
        X,
    ),
    attention(None),
    attention(fixed("mask", (5, 6))),
    attention((fixed("mask", (2, 1, 5, 6)) > -0.5).to(torch.int32)),
    quantized_weight(SIGNED, BLOCKS),
    quantized_weight(SIGNED[:, :7], BLOCKS[:, :1]),
    quantized_weight(SIGNED, BLOCKS, int4(np.arange(12).reshape(6, 2) - 6)),
    quantized_weight(UNSIGNED, BLOCKS[:3], np.full((3, 2), 8).astype(types.np_uint4_dtype)),
    quantized_weight(BYTES, BLOCKS),
    quantized_weight(BYTES, BLOCKS[:1, :1], np.array([[-3]], np.int8)),
    quantized_weight((CODES * 5).astype(np.uint8), BLOCKS[:, :1]),
]

CASES = [*ELEMENTWISE, *OVER_AXES, *PRODUCTS]

compiled = compiled_fixture(CASES)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_an_operation_computes_what_pytorch_does(compiled: Compiled, number: int) -> None:
    compiled.check(number, CASES[number])


def test_every_rule_has_a_case(compiled: Compiled) -> None:
    assert compiled.operations() >= set(RULES) - set(moves.RULES)
