"""Programs rewritten for ExecuTorch's Core ML delegate say the same in PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.graphs import operators
from tests.support.rows import program
from tests.support.splits import difference
from tests.support.tiny_models import fixed
from zoexport.core import int4
from zoexport.core.types import Program
from zoexport.ir.graphs import aten, is_call, zo
from zoexport.targets.coreml_delegate.rules import write_for_coreml

X, DY = fixed("x", (2, 3, 64)), fixed("dy", (2, 3, 8))
WEIGHT, BIAS = fixed("weight", (8, 64)), fixed("bias", (8,))
INT4 = int4.quantize_int4(WEIGHT, 32)
INT8 = int4.quantize_int8(WEIGHT)
LOGITS = fixed("logits", (2, 3, 8))
PLACES = torch.tensor([1, 0, 1, 2])
TOKENS = torch.tensor([0, 7, 3])
CASES: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = [
    (lambda x, c, s, b: zo.linear_int4(x, c, s, b), (X, *INT4, BIAS)),
    (lambda x, c, s: zo.linear_int8(x, c, s, None), (X, *INT8)),
    (lambda dy, c, s: zo.linear_int4_input_gradient(dy, c, s), (DY, *INT4)),
    (lambda dy, c, s: zo.linear_int8_input_gradient(dy, c, s), (DY, *INT8)),
    (lambda tokens, c, s: zo.embedding_int4(c, s, tokens), (TOKENS, *INT4)),
    (lambda x, c, s: aten.linear(x, zo.dequantize_int4(c, s)), (X, *INT4)),
    (lambda x, c, s: aten.linear(x, zo.dequantize_int8(c, s)), (X, *INT8)),
    (lambda x: aten.gelu.default(x, approximate="tanh"), (X,)),
    (lambda x: aten.gelu.default(x), (X,)),
    (
        lambda x, w, b: aten.native_layer_norm.default(x, [64], w, b, 1e-5),
        (X, WEIGHT[0], WEIGHT[1]),
    ),
    (lambda x: aten.native_layer_norm.default(x, [3, 64], None, None, 1e-5), (X,)),
    (
        lambda x, v, i: aten.index_put.default(x, [None, i], v, True),
        (X, X[:, [0, 1, 0, 2]], PLACES),
    ),
    (lambda x, v, i: aten.index_put.default(x, [i], v, True), (X[0], X[0, [0, 1, 0, 2]], PLACES)),
    (lambda logits, tokens: zo.label_logprobs(logits, tokens), (LOGITS, TOKENS)),
    (
        lambda logits, tokens, weights: zo.label_gradient(logits, tokens, weights),
        (LOGITS[0], TOKENS, BIAS[:3]),
    ),
]


def rewritten(
    function: Callable[..., Any], *inputs: torch.Tensor
) -> tuple[Program, list[torch.Tensor]]:
    """A program whose codes and scales are weights, rewritten, and what it is run on then."""
    made = program(function, *inputs)
    known = {value.name: tensor for value, tensor in zip(made.inputs, inputs, strict=True)}
    made.inputs = [
        dataclasses.replace(value, role="weight")
        if any(known[value.name] is part for part in (*INT4, *INT8, PLACES))
        else value
        for value in made.inputs
    ]
    known |= write_for_coreml(made, known)
    return made, [known[value.name] for value in made.inputs]


@pytest.mark.parametrize(("function", "inputs"), CASES)
def test_the_same_numbers_by_operators_of_torch(
    function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]
) -> None:
    made, given = rewritten(function, *inputs)
    assert not [
        name
        for name in operators(made)
        if name.startswith(("zoexport", "aten.native_", "aten.index_put"))
    ]
    expected = function(*inputs)
    for ours, theirs in zip(
        made.module(*given), [expected] if torch.is_tensor(expected) else expected, strict=True
    ):
        assert ours.dtype == theirs.dtype
        assert difference(ours, theirs) < 2e-6


@pytest.mark.parametrize("dim", [0, 1])
def test_sums_at_places_are_over_the_first_axis(dim: int) -> None:
    """The converter's index_put adds up there and nowhere else."""

    def added(x: torch.Tensor, v: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return aten.index_add.default(x, dim, i, v)

    places = PLACES % X.shape[dim]
    inputs = (X, X.index_select(dim, places), places)
    made, given = rewritten(added, *inputs)
    put = next(node for node in made.module.graph.nodes if is_call(node, aten.index_put))
    assert len(put.args[1]) == 1 and "aten.index_add.default" not in operators(made)
    assert difference(*made.module(*given), added(*inputs)) < 2e-6


def test_both_directions_read_one_constant() -> None:
    codes, scales = INT4

    def layer(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return zo.linear_int4_input_gradient(zo.linear_int4(x, c, s, None), c, s)

    made, _ = rewritten(layer, X, codes, scales)
    assert operators(made) == {
        "torchao.dequantize_affine.default": 1,
        "aten.linear.default": 1,
        "aten.matmul.default": 1,
    }
    assert {value.dtype for value in made.weights()} == {"int8", "float32"}


def test_gelu_keeps_no_argument_that_the_converter_drops() -> None:
    made, _ = rewritten(lambda x: aten.gelu.default(x, approximate="tanh"), X)
    assert "aten.gelu.default" not in operators(made)


def test_what_has_no_rule_stays() -> None:
    made, _ = rewritten(lambda x: aten.silu.default(x), X)
    assert operators(made) == {"aten.silu.default": 1}


def test_replacing_elements_stays() -> None:
    made, _ = rewritten(lambda x, v, i: aten.index_put.default(x, [i], v), X[0], X[0], TOKENS % 3)
    assert operators(made) == {"aten.index_put.default": 1}


def test_inputs_between_calls() -> None:
    """What a rule reads stands before it, wherever the program has its inputs."""
    made = program(lambda x, c, s: zo.linear_int4(aten.neg(x), c, s, None), X, *INT4)
    first, *_, negation, _, _ = made.module.graph.nodes
    first.append(negation)
    made.inputs[1:] = [dataclasses.replace(value, role="weight") for value in made.inputs[1:]]
    weights = write_for_coreml(made, {"in1": INT4[0], "in2": INT4[1]})
    made.module.graph.lint()
    (found,) = made.module(X, *weights.values())
    assert difference(found, zo.linear_int4(-X, *INT4, None)) < 1e-6
