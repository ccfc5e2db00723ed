"""Programs as functions of a Core ML package: built, saved and evaluated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import coreml_packages
from tests.support.rows import program
from tests.support.splits import arguments, difference, tiny_graph
from tests.support.tiny_models import fixed
from zoexport.core.coreml_names import result_name
from zoexport.core.errors import LoweringError
from zoexport.ir.graphs import aten, copy_program
from zoexport.targets.coreml.functions import FunctionBuilder
from zoexport.targets.coreml.small_slots import scale_small_slots
from zoexport.targets.coreml.values import FP16, FP32
from zoexport.targets.coreml.weights import Weights
from zoexport.targets.kinks import has_kink
from zoexport.targets.slot_gradients import small_products
from zoexport.testing import Package

X, Y = fixed("x", (2, 3, 8)), fixed("y", (2, 3, 8))
POSITIVE = X.abs() + 0.5
PLACES = torch.tensor([1, 0, 1, 7])
CASES: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = [
    (lambda x, y: aten.add.Tensor(x, y, alpha=0.5), (X, Y)),
    (lambda x, y: aten.sub.Tensor(x, y, alpha=2), (X, Y)),
    (lambda x: aten.rsub.Scalar(x, 1.0), (X,)),
    (lambda x: aten.pow.Tensor_Scalar(x, 3), (X,)),
    (lambda x: aten.pow.Tensor_Scalar(x, -0.5), (POSITIVE,)),
    (lambda x: aten.rsqrt.default(x), (POSITIVE,)),
    (lambda x: aten.reciprocal.default(x), (POSITIVE,)),
    (lambda x: aten.log.default(x), (POSITIVE,)),
    (lambda x: aten.gelu.default(x), (X,)),
    (lambda x: aten.gelu.default(x, approximate="tanh"), (X,)),
    (lambda x: aten.silu.default(x), (X,)),
    (lambda x: aten.clamp.default(x, -0.5), (X,)),
    (lambda x: aten.masked_fill.Scalar(x, aten.le.Scalar(x, 0), -1e9), (X,)),
    (lambda x, y: aten.where.self(aten.gt.Tensor(x, y), x, y), (X, Y)),
    (lambda x: aten.slice_scatter.default(x, aten.slice.Tensor(x, 2, 0, 4), 2, 0, 8, 2), (X,)),
    (lambda x: aten.slice_scatter.default(x, aten.slice.Tensor(x, 2, 0, 3), 2, 5, 8), (X,)),
    (lambda x: aten.cat.default([x, aten.neg.default(x)], -1), (X,)),
    (lambda x: aten.stack.default([x, x], -1), (X,)),
    (lambda x: aten.select.int(x, 2, -1), (X,)),
    (lambda x: aten.chunk.default(x, 3, 2)[2], (X,)),
    (lambda x: aten.split_with_sizes.default(x, [1, 2, 5], -1)[1], (X,)),
    (lambda x: aten.expand.default(aten.unsqueeze.default(x, 0), [4, 2, -1, 8]), (X,)),
    (lambda x: aten.repeat.default(x, [2, 1, 1, 2]), (X,)),
    (lambda x: aten.flatten.using_ints(x, 1, 2), (X,)),
    (lambda x: aten.mean.dim(x, [-1], True), (X,)),
    (lambda x: aten.sum.dim_IntList(x, [0, 2]), (X,)),
    (lambda x: aten.logsumexp.default(x, [-1]), (X,)),
    (lambda x: aten._softmax.default(x, -1, False), (X,)),
    (lambda x, w, b: aten.native_layer_norm.default(x, [8], w, b, 1e-5)[0], (X, Y[0, 0], Y[0, 1])),
    (
        lambda x, y: aten.baddbmm.default(x, y, aten.transpose.int(y, 1, 2), beta=0.5),
        (X[:, :, :3], Y),
    ),
    (lambda x, y: aten.linear.default(x, y), (X, Y[0])),
    (lambda x, i, y: aten.index_add.default(x, 2, i, y), (X, PLACES, Y[:, :, :4])),
    (lambda x, i: aten.add.Tensor(x, aten.remainder.Scalar(i, 3)), (X[..., :4], PLACES)),
]


def build(function: Callable[..., Any], *inputs: torch.Tensor, half: bool = False) -> Any:
    return FunctionBuilder(
        program(function, *inputs), Weights({}, {}, FP16 if half else FP32)
    ).build()


def test_rules_give_what_torch_gives(tmp_path: Path) -> None:
    """All cases as functions of one package: converting is what takes time."""
    made = {f"case_{n}": program(function, *inputs) for n, (function, inputs) in enumerate(CASES)}
    functions = {
        name: FunctionBuilder(one, Weights({}, {}, FP32)).build() for name, one in made.items()
    }
    path = coreml_packages.save_functions(tmp_path / "package.mlpackage", functions)
    package = Package(path)
    for (name, one), (function, inputs) in zip(made.items(), CASES, strict=True):
        given = {
            feature.name: (tensor if tensor.is_floating_point() else tensor.int()).numpy()
            for feature, tensor in zip(package.inputs(name), inputs, strict=True)
        }
        (found,) = package.run(name, given).values()
        expected = function(*inputs)
        assert [result_name(value.name) for value in one.outputs] == [*package.run(name, given)]
        np.testing.assert_allclose(found, expected.numpy(), rtol=2e-6, atol=2e-6, err_msg=name)


def test_an_operator_without_a_rule_is_named() -> None:
    with pytest.raises(LoweringError, match=r"aten.cummax.*has a rule for in Core ML"):
        build(lambda x: aten.cummax.default(x, -1)[0], X)


def test_a_case_that_a_rule_does_not_take_is_named() -> None:
    places = torch.tensor([0, 1])
    with pytest.raises(LoweringError, match="several indices, or a mask"):
        build(lambda x, i: aten.index.Tensor(x, [i, i]), X, places)


def test_what_fp16_does_not_hold_is_computed_in_fp32(tmp_path: Path) -> None:
    """Squares of a thousand, and a mask far below fp16."""

    def norm(x: torch.Tensor) -> torch.Tensor:
        return x * aten.rsqrt.default(aten.mean.dim(aten.pow.Tensor_Scalar(x, 2), [-1], True))

    large = 1000 * X
    function = build(norm, large, half=True)
    path = coreml_packages.save_functions(tmp_path / "package.mlpackage", {"norm": function})
    package = Package(path)
    (feature,) = package.inputs("norm")
    (found,) = package.run("norm", {feature.name: large.numpy()}).values()
    np.testing.assert_allclose(found, norm(large).numpy(), rtol=1e-3)


def test_state_of_fp16_goes_in_and_out_as_it_is(tmp_path: Path) -> None:
    """What is computed in between is fp32: the sum is rounded once."""
    master, move = X.half(), Y * 1e-3

    def update(master: torch.Tensor, move: torch.Tensor) -> torch.Tensor:
        wide = aten.to.dtype(master, torch.float32)
        return aten.to.dtype(aten.sub.Tensor(wide, aten.mul.Tensor(move, 0.3)), torch.float16)

    function = build(update, master, move, half=True)
    path = coreml_packages.save_functions(tmp_path / "package.mlpackage", {"update": function})
    package = Package(path)
    features = package.inputs("update")
    assert [feature.dtype for feature in features] == ["fp16", "fp32"]
    given = zip(features, (master, move), strict=True)
    (found,) = package.run("update", {one.name: value.numpy() for one, value in given}).values()
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, update(master, move).numpy())


def test_gradients_that_pass_a_small_matrix_are_the_same() -> None:
    """The rewrite alone, in float32; tests/sweep/kept.py has a case of fp16."""
    graph, _ = tiny_graph("llama", target="ios-coreml", weights="fp32")
    stage = graph.stages[1]
    backward = next(p for p in graph.programs.values() if p.family == stage.backward)
    made = copy_program(backward, backward.name)
    slots = [value for value in made.inputs if value.name.startswith("lora_B.")]
    assert len(small_products(made)) == len(slots) > 0
    scale_small_slots(made)
    inputs = arguments(dataclasses.replace(graph, stages=[stage]), backward)
    for ours, theirs in zip(made.module(*inputs), backward.module(*inputs), strict=True):
        assert difference(ours, theirs) < 1e-5


def test_relu_has_a_kink() -> None:
    assert has_kink(program(lambda x: aten.relu.default(x), X))
    assert has_kink(program(lambda x: aten.clamp.default(x, 0, 6), X))
    assert not has_kink(program(lambda x: aten.silu.default(x), X))
