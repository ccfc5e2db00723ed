"""The rules for Vulkan, each on a small program: what stands there afterwards, and the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support.graphs import operators
from tests.support.tiny_models import fixed
from zoexport.core import int4
from zoexport.core.types import Program, Stage, TrainingGraph, Value
from zoexport.ir.graphs import aten, operand, placeholders, shape_of, zo
from zoexport.ir.shapes import record_shapes
from zoexport.targets.vulkan_delegate.rules import write_for_vulkan

N, K = 96, 64
CODES, SCALES = int4.quantize_int4(fixed("weight", (N, K)))


def weights(**tensors: Tensor) -> list[Value]:
    """Values of weights."""
    return [
        Value(name, "weight", str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in tensors.items()
    ]


def given(name: str, *shape: int) -> Value:
    """An activation."""
    return Value(name, "activation", "float32", shape)


def program_of(function: Callable[..., Any], values: list[Value]) -> Program:
    """A program that computes ``function`` of its inputs."""
    zeros = [torch.zeros(value.sizes(), dtype=getattr(torch, value.dtype)) for value in values]
    with torch.no_grad():
        traced = make_fx(function, pre_dispatch=True)(*zeros)
    module = GraphModule(torch.nn.Module(), traced.graph)
    program = Program("p", module, list(values), [given("y")])
    record_shapes(program)
    return program


def graph_of(*, bound: bool, **tensors: Tensor) -> TrainingGraph:
    """A graph with these weights; ``bound``: stages bind them."""
    graph = TrainingGraph({}, dict(tensors), [], {}, seq_len=8, length=8, rows=1)
    if bound:
        graph.stages = [Stage("layer", "layer", None, {})]
    return graph


def check(graph: TrainingGraph, program: Program, *inputs: Tensor) -> Program:
    """``program`` rewritten, after a comparison of what it gives."""
    (before,) = program.module(*inputs)
    names = [value.name for value in program.inputs]
    constants = write_for_vulkan(graph, program)
    known = {**graph.weights, **dict(zip(names, inputs, strict=True)), **constants}
    (after,) = program.module(*(known[value.name] for value in program.inputs))
    assert after.shape == before.shape
    assert torch.allclose(after, before, rtol=1e-5, atol=1e-5)
    return program


def node(program: Program, operator: Any) -> Node:
    """The one call of an operator."""
    (found,) = [node for node in program.module.graph.nodes if node.target == operator]
    return found


@pytest.mark.parametrize("rows", [2, 60], ids=["x is turned", "the weight is turned"])
def test_an_int4_product_over_a_bound_weight(rows: int) -> None:
    def function(x: Tensor, codes: Tensor, scales: Tensor) -> tuple[Tensor]:
        return (zo.linear_int4(x, codes, scales, None),)

    bound = weights(**{"w.codes": CODES, "w.scales": SCALES})
    graph = graph_of(bound=True)
    x = fixed("x", (2, rows, K))
    found = check(graph, program_of(function, [given("x", 2, rows, K), *bound]), x, CODES, SCALES)
    product = node(found, aten.bmm.default)
    assert shape_of(operand(product)) == ((1, N, K) if rows == 2 else (1, 2 * rows, K))
    assert operators(found)["zoexport.embedding_int4.default"] == 1
    assert operators(found)["aten.permute.default"] == (2 if rows == 2 else 1)


def test_a_weight_is_unpacked_once_for_a_product_and_its_gradient() -> None:
    def function(x: Tensor, codes: Tensor, scales: Tensor) -> tuple[Tensor]:
        y = zo.linear_int4(x, codes, scales, None)
        return (zo.linear_int4_input_gradient(y, codes, scales),)

    bound = weights(**{"w.codes": CODES, "w.scales": SCALES})
    program = program_of(function, [given("x", 1, 5, K), *bound])
    found = check(graph_of(bound=True), program, fixed("x", (1, 5, K)), CODES, SCALES)
    assert operators(found)["zoexport.embedding_int4.default"] == 1
    assert operators(found)["aten.bmm.default"] == 2


def test_an_int8_product_over_a_bound_weight() -> None:
    def function(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor) -> tuple[Tensor]:
        y = zo.linear_int8(x, codes, scales, bias)
        return (zo.linear_int8_input_gradient(y, codes, scales),)

    codes, scales = int4.quantize_int8(fixed("weight", (N, K)))
    bias = fixed("bias", (N,))
    bound = weights(codes=codes, scales=scales, bias=bias)
    program = program_of(function, [given("x", 5, K), *bound])
    found = check(graph_of(bound=True), program, fixed("x", (5, K)), codes, scales, bias)
    assert operators(found)["aten._to_copy.default"] == 1
    assert not any(name.startswith("zoexport") for name in operators(found))


def test_an_int4_product_over_a_constant_is_one_that_the_delegate_knows() -> None:
    def function(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor) -> tuple[Tensor]:
        return (aten.linear(x, zo.dequantize_int4(codes, scales), bias),)

    bias = fixed("bias", (N,))
    tensors = {"w.codes": CODES, "w.scales": SCALES, "bias": bias}
    program = program_of(function, [given("x", 2, 3, K), *weights(**tensors)])
    found = check(
        graph_of(bound=False, **tensors), program, fixed("x", (2, 3, K)), CODES, SCALES, bias
    )
    product = node(found, aten.mm.default)
    assert shape_of(product) == (6, N)
    # A reshape here would be left out of the pattern, and the delegate would multiply a part of the rows.
    assert operand(product).target == aten.clone.default
    numbers = node(found, torch.ops.torchao.dequantize_affine.default)
    assert all(arg.op == "placeholder" for arg in numbers.all_input_nodes)
    assert {*placeholders(found)} == {
        "x", "bias", "w.codes.int8", "w.scales.fp32", f"zeros.{N}x{K // 32}"
    }  # fmt: skip


@pytest.mark.parametrize("bound", [False, True])
def test_rows_of_an_int4_table(bound: bool) -> None:
    def function(tokens: Tensor, codes: Tensor, scales: Tensor) -> tuple[Tensor]:
        return (zo.embedding_int4(codes, scales, tokens),)

    tensors = {"w.codes": CODES, "w.scales": SCALES}
    tokens = Value("tokens", "tokens", "int64", (2, 3))
    program = program_of(function, [tokens, *weights(**tensors)])
    found = check(
        graph_of(bound=bound, **tensors), program, torch.arange(6).view(2, 3) * 7, CODES, SCALES
    )
    mine, theirs = "zoexport.embedding_int4.default", "et_vk.embedding_q4gsw.default"
    assert operators(found) == {mine if bound else theirs: 1}


@pytest.mark.parametrize("bound", [False, True])
def test_a_product_with_a_weight_in_numbers(bound: bool) -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor]:
        return (aten.linear(x, w, b),)

    w, b, x = fixed("w", (N, K)), fixed("b", (N,)), fixed("x", (2, 3, K))
    program = program_of(function, [given("x", 2, 3, K), *weights(w=w, b=b)])
    found = check(graph_of(bound=bound, w=w, b=b), program, x, w, b)
    assert operators(found)["aten.bmm.default"] == bound
    assert operators(found)["aten.mm.default"] == (not bound)


def test_a_product_of_computed_matrices_has_three_dimensions() -> None:
    program = program_of(
        lambda x, y: (torch.tanh(x).t() @ y,), [given("x", 5, 7), given("y", 5, 3)]
    )
    found = check(graph_of(bound=False), program, fixed("x", (5, 7)), fixed("y", (5, 3)))
    assert len(shape_of(node(found, aten.bmm.default))) == 3
    assert operators(found)["aten.mm.default"] == 0


def test_numbers_and_paddings() -> None:
    def function(x: Tensor) -> tuple[Tensor]:
        y = aten.div.Scalar(aten.mul.Scalar(x, 3.0), 7)
        zeros = torch.zeros(2, 3, 9)
        return (aten.slice_scatter(zeros, y, 2, 4, 9),)

    found = check(
        graph_of(bound=True), program_of(function, [given("x", 2, 3, 5)]), fixed("x", (2, 3, 5))
    )
    assert operators(found)["aten.constant_pad_nd.default"] == 1
    assert not {"aten.mul.Scalar", "aten.div.Scalar", "aten.slice_scatter.default"} & {
        *operators(found)
    }


def test_a_part_that_replaces_something_is_left_alone() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor]:
        return (aten.slice_scatter(x, y, 1, 2, 4),)

    program = program_of(function, [given("x", 2, 6), given("y", 2, 2)])
    found = check(graph_of(bound=True), program, fixed("x", (2, 6)), fixed("y", (2, 2)))
    assert operators(found)["aten.slice_scatter.default"] == 1


def test_a_reshape_of_a_reshape_is_one() -> None:
    def function(x: Tensor) -> tuple[Tensor]:
        return (x.view(12, 5).view(3, 4, 5).view(60) + 1.0,)

    program = program_of(function, [given("x", 2, 6, 5)])
    found = check(graph_of(bound=True), program, fixed("x", (2, 6, 5)))
    assert operators(found)["aten.reshape.default"] == 1


def test_an_index_along_one_dimension() -> None:
    program = program_of(
        lambda x, i: (x[:, :, i],), [given("x", 2, 3, 5), Value("i", "tokens", "int64", (2,))]
    )
    found = check(graph_of(bound=True), program, fixed("x", (2, 3, 5)), torch.tensor([4, 0]))
    assert operators(found)["aten.index_select.default"] == 1
    assert operators(found)["aten.index.Tensor"] == 0
