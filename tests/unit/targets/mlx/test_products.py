"""The rules of the target ios-mlx for products, quantized weights and labels, against torch."""

from __future__ import annotations

import operator
from typing import Any

import mlx.core as mx
import pytest
import torch

from tests.support.mlx_arrays import assert_rule, by_rule, case, covered, packed, to_mlx, to_torch
from tests.support.tiny_models import fixed
from zoexport.core import int4
from zoexport.ir.graphs import aten, zo
from zoexport.targets.mlx import axes, operators
from zoexport.targets.mlx.grid import grids
from zoexport.targets.mlx.products import labels, of_packed, products, rules

A, B, BIAS = fixed("a", (5, 7)), fixed("b", (7, 3)), fixed("bias", (3,))
PILE, OTHERS = fixed("pile", (2, 5, 7)), fixed("others", (2, 7, 3))
Q, K, V = (fixed(name, (2, 4, 6, 8)) for name in "qkv")
SHARED_K, SHARED_V = K[:, :2], V[:, :2]
SEEN = torch.ones(6, 6).tril().bool()
BIASES = fixed("mask", (2, 1, 6, 6))

ROWS, WIDTH = 96, 64
X, DY = fixed("x", (2, 3, WIDTH)), fixed("dy", (2, 3, ROWS))
WEIGHT, OUT_BIAS = fixed("weight", (ROWS, WIDTH)), fixed("out", (ROWS,))
INDICES = torch.tensor([[0, 95, 7], [7, 1, 2]])
INT4, INT8 = int4.quantize_int4(WEIGHT), int4.quantize_int8(WEIGHT)

LOGITS = 4 * fixed("logits", (3, 5, 11))
LABELS, LABEL_WEIGHTS = torch.tensor([0, 10, 3, 3, 7]), fixed("label weights", (5,))
TIED = torch.zeros(1, 5, 11)
CERTAIN = torch.nn.functional.one_hot(LABELS, 11) * 12.0

PRODUCTS = [
    case(aten.mm.default, A, B),
    case(aten.bmm.default, PILE, OTHERS),
    case(aten.matmul.default, PILE, B),
    case(aten.matmul.default, A, BIAS.new_ones(7)),
    case(aten.matmul.default, PILE[:, None], OTHERS),
    case(aten.addmm.default, BIAS, A, B),
    case(aten.addmm.default, BIAS, A, B, beta=2, alpha=0.5),
    case(aten.baddbmm.default, BIAS, PILE, OTHERS),
    case(aten.baddbmm.default, fixed("c", (2, 5, 3)), PILE, OTHERS, beta=0.5, alpha=3),
    case(aten.scaled_dot_product_attention.default, Q, K, V),
    case(aten.scaled_dot_product_attention.default, Q, K, V, None, 0.0, True),
    case(aten.scaled_dot_product_attention.default, Q[:, :, :4], K, V, None, 0.0, True),
    case(aten.scaled_dot_product_attention.default, Q, K, V, SEEN),
    case(aten.scaled_dot_product_attention.default, Q, K, V, BIASES, scale=0.5),
    case(aten.scaled_dot_product_attention.default, Q, SHARED_K, SHARED_V, enable_gqa=True),
    case(aten.scaled_dot_product_attention.default, Q[:, :, :2], K, V),
]
LABELED = [
    case(zo.label_logprobs.default, LOGITS, LABELS),
    case(zo.label_logprobs.default, TIED, LABELS),
    case(zo.label_logprobs.default, LOGITS - 5, LABELS),
    case(zo.label_gradient.default, LOGITS[0], LABELS, LABEL_WEIGHTS),
    case(zo.label_gradient.default, TIED[0], LABELS, LABEL_WEIGHTS),
    case(zo.label_gradient.default, CERTAIN, LABELS, LABEL_WEIGHTS),
]
SPARSE_X, SPARSE_Y = fixed("sparse x", (8, 3, 16)), fixed("sparse y", (8, 3, 12))
VALUES, NOISE = fixed("values", (2000,)).half(), fixed("noise", (2, 2000))
FEW = torch.randperm(192, generator=torch.Generator().manual_seed(0))[:40].sort()[0].int()
PLACES = torch.cat([FEW, torch.zeros(1960, dtype=torch.int32)])
MANY = torch.arange(2000, dtype=torch.int32)
SPARSE = [
    case(zo.sparse_add_mm_given.default, SPARSE_Y, SPARSE_X, VALUES, PLACES, span, eps, NOISE, most)
    for span, most in ((torch.tensor([5, 31]), 30), (torch.tensor([0, 0]), 7))
    for eps in (torch.tensor([0.1]), torch.tensor([0.0]))
] + [
    case(
        zo.sparse_add_mm_given.default,
        fixed("many y", (4, 50)),
        fixed("many x", (4, 40)),
        *(VALUES, MANY, torch.tensor([0, 2000]), torch.tensor([0.1]), NOISE, 2000),
    ),
    case(
        zo.sparse_add_mm_given.default,
        SPARSE_Y[:3],
        SPARSE_X[:3],
        *(VALUES, PLACES, torch.tensor([5, 31]), None, None, 30),
    ),
]
OF_NUMBERS = [
    case(aten.linear.default, X, WEIGHT),
    case(aten.linear.default, X, WEIGHT, OUT_BIAS),
    case(aten.embedding.default, WEIGHT, INDICES),
    case(aten.embedding.default, WEIGHT, INDICES, 0, False, False),
]
OF_CODES = [
    case(zo.dequantize_int4.default, *INT4),
    case(zo.dequantize_int8.default, *INT8),
    case(zo.embedding_int4.default, *INT4, INDICES),
    case(zo.linear_int4.default, X, *INT4, None),
    case(zo.linear_int4.default, X, *INT4, OUT_BIAS),
    case(zo.linear_int4_input_gradient.default, DY, *INT4),
    case(zo.linear_int8.default, X, *INT8, None),
    case(zo.linear_int8.default, X, *INT8, OUT_BIAS),
    case(zo.linear_int8_input_gradient.default, DY, *INT8),
]


@pytest.mark.parametrize(
    ("operator", "args", "kwargs"), [*PRODUCTS, *LABELED, *SPARSE, *OF_NUMBERS]
)
def test_rule(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert_rule(operator, args, kwargs, rounding=3e-6)


def test_the_gradient_of_a_label_that_is_all_but_certain_has_its_digits() -> None:
    args = (CERTAIN, LABELS, LABEL_WEIGHTS)
    *_, found = by_rule(zo.label_gradient.default, args, {})
    *_, expected = zo.label_gradient(*args)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize(("operator", "args", "kwargs"), OF_CODES)
def test_rule_of_codes(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    place = next(place for place, arg in enumerate(args) if arg is INT4[0] or arg is INT8[0])
    codes, scales = args[place : place + 2]
    given = (*args[:place], packed(codes, scales), to_mlx(scales), *args[place + 2 :])
    if "dequantize" in str(operator):
        rule = of_packed()[operator.overloadpacket]
        torch.testing.assert_close(to_torch(rule(*given).numbers()), operator(*args))
    else:
        assert_rule(operator, args, kwargs, given=given, rounding=2e-6)


def test_rows_of_int8_codes_are_integers() -> None:
    table = packed(*INT8)
    rows = by_rule(aten.embedding.default, (table, INDICES), {})
    assert rows.dtype == torch.float32
    assert torch.equal(rows, INT8[0][INDICES].float())


def test_a_part_of_several_results() -> None:
    assert rules()[operator.getitem]((1, mx.array(2)), 1).item() == 2


def test_every_rule_has_a_case() -> None:
    assert covered([*PRODUCTS, *SPARSE]) == set(products())
    assert covered(LABELED) == set(labels())
    assert covered([*OF_NUMBERS, *OF_CODES]) == set(of_packed())
    tables = (operators.elementwise, operators.shapes, axes.reductions, axes.indexing)
    known = [*(key for table in tables for key in table()), *products(), *labels(), *grids()]
    # No rule replaces another.
    assert len(known) == len(set(known)) and {*known, operator.getitem} == set(rules())
    assert not set(rules()) & set(of_packed())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((Q, K, V, None, 0.1), "dropout while training"),
        ((Q[0], K[0], V[0]), "expected"),
    ],
)
def test_attention_that_is_refused(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises((NotImplementedError, ValueError), match=message):
        by_rule(aten.scaled_dot_product_attention.default, args, {})


VOCABULARY = 50_000
"""No multiple of the parts in which long sums are made."""


def test_a_large_vocabulary_loses_no_digits() -> None:
    """Sums of many numbers of one sign, which added one by one are 1e-5 off."""
    logits = 2 * fixed("vocabulary", (1, 4, VOCABULARY))
    tokens, weights = torch.tensor([0, 49_999, 256, 7]), torch.tensor([1.0, -0.5, 0.25, 2.0])
    exact = torch.log_softmax(logits.double(), -1)
    expected = exact[0].gather(1, tokens[:, None])[:, 0]
    found, _ = labels()[zo.label_logprobs](to_mlx(logits), to_mlx(tokens))
    torch.testing.assert_close(to_torch(found)[0].double(), expected, rtol=3e-7, atol=0)
    *_, gradient = labels()[zo.label_gradient](to_mlx(logits[0]), to_mlx(tokens), to_mlx(weights))
    onehot = torch.nn.functional.one_hot(tokens, VOCABULARY)
    truth = weights[:, None].double() * (onehot - exact[0].exp())
    torch.testing.assert_close(to_torch(gradient).double(), truth, rtol=4e-6, atol=0)


@pytest.mark.parametrize("quantize", [None, int4.quantize_int4, int4.quantize_int8])
def test_gradients_that_all_but_cancel_keep_their_digits(quantize: Any) -> None:
    """dy W over a vocabulary: the gradients of a row of logits add up to zero."""
    table = fixed("table", (VOCABULARY, WIDTH)) + 1
    logits = fixed("row", (2, VOCABULARY))
    dy = torch.softmax(logits, -1)
    dy[:, 7] -= dy.sum(-1)
    if quantize is None:
        values, made = table, rules()[aten.mm](to_mlx(dy), to_mlx(table))
    else:
        codes, scales = quantize(table)
        dequantize = int4.dequantize_int4 if scales.dim() == 2 else int4.dequantize_int8
        values = dequantize(codes, scales)
        made = packed(codes, scales).product(to_mlx(dy), transpose=False)
    expected = dy.double() @ values.double()
    error = (to_torch(made).double() - expected).norm() / expected.norm()
    assert error <= 3e-6
