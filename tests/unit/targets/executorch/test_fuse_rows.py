"""fuse_rows: what becomes one row program, what is stored, what stays plain, and that values stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.programs import values
from tests.support.rows import fused, kernels, program, reads, row_programs
from tests.support.splits import arguments, difference, tiny_graph
from zoexport.core.graph import Program
from zoexport.ir.graphs import aten, is_call, output_node
from zoexport.ir.row_ops import Read

X, Y = values(2, 3, 8), values(2, 3, 8, seed=1)
COLUMN = values(2, 3, 1, seed=2)
ROW = values(8, seed=3)
MASK = torch.arange(8.0).view(1, 1, 8) > 3
FLOAT_MASK = torch.where(MASK, -1e9, 0.0)
W = values(8, 8, seed=4)
Tensors = tuple[torch.Tensor, ...]


def check(function: Callable[..., Any], *inputs: torch.Tensor) -> Program:
    """The fused program, after a look at its values."""
    made = program(function, *inputs)
    found = fused(made)
    for ours, theirs in zip(found.module(*inputs), made.module(*inputs), strict=True):
        assert ours.is_contiguous() and ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-6)
    return found


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = torch.cat([-x[..., 4:], x[..., :4]], -1)
    return x * cos + half * sin


def half_gradient(x: torch.Tensor) -> torch.Tensor:
    """As autograd gives the gradient of slices: what is added up from zeros."""
    first = aten.slice_scatter(torch.zeros_like(x), x[..., 4:], -1, 0, 4)
    second = aten.slice_scatter(torch.zeros_like(x), x[..., :4], -1, 4, 8)
    return first + second


ONE_PROGRAM: dict[str, tuple[Callable[..., Any], Tensors]] = {
    "rms norm": (
        lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w,
        (X, ROW),
    ),
    "layer norm": (lambda x, w: aten.native_layer_norm(x, [8], w, None, 1e-5)[0], (X, ROW)),
    "softmax with a mask": (lambda x, m: torch.softmax(x * 0.5 + m, -1), (X, FLOAT_MASK)),
    "gelu": (lambda x: torch.nn.functional.gelu(x), (X,)),
    "gelu by tanh": (lambda x: torch.nn.functional.gelu(x, approximate="tanh"), (X,)),
    "a gate": (lambda x, y: torch.nn.functional.silu(x) * y, (X, Y)),
    "relu": (lambda x: torch.relu(x), (X,)),
    "where": (lambda x, y: torch.where(x > 0, y, -1.0 * x), (X, Y)),
    "where, with a number": (lambda x: torch.where(x.ge(0.5), x, torch.zeros_like(x)), (X,)),
    "clamp": (lambda x: torch.clamp(x, -0.5, 0.25), (X,)),
    "clamp by values": (lambda x, c: torch.clamp(x, min=c), (X, COLUMN)),
    "clamp from above": (lambda x: torch.clamp(x, max=0.25), (X,)),
    "a column and a row": (lambda x, c, r: (x - c) / r.abs() + c, (X, COLUMN, ROW)),
    "amax": (lambda x: x - x.amax(-1, keepdim=True), (X,)),
    "powers": (lambda x: x**3 + (x * x + 1) ** -1.5 + (x * x) ** 0.5, (X,)),
    "rsub": (lambda x: 1.0 - x, (X,)),
    "rotary": (rotated, (X, ROW, Y[:1])),
    "gradients of slices": (half_gradient, (X,)),
    "slices from the end": (lambda x: x[..., -3:] + x[..., :3], (X,)),
    "slices from before the start": (lambda x: x[:, -9:, -9:] * 2, (X,)),
    "cat of unlike parts": (lambda x, c: torch.cat([x[..., 2:], c, x], -1), (X, COLUMN)),
    "a sum of equal numbers": (
        lambda x, c: x * (2.0 * c.expand(2, 3, 8)).sum(-1, keepdim=True),
        (X, COLUMN),
    ),
    "a mean of equal numbers": (
        lambda x, c: x + (2.0 * c.expand(2, 3, 8)).mean(-1, keepdim=True),
        (X, COLUMN),
    ),
    "a softmax of equal numbers": (
        lambda x, c: x * torch.softmax((2.0 * c.expand(2, 3, 8)), -1),
        (X, COLUMN),
    ),
    "a part of equal numbers": (
        lambda x, c: x[..., :3] * (2.0 * c.expand(2, 3, 8))[..., 4:7],
        (X, COLUMN),
    ),
    "parts that are equal numbers": (
        lambda x, c: torch.cat([c.expand(2, 3, 4), x, (c.expand(2, 3, 3) * 2.0)], -1),
        (X, COLUMN),
    ),
    "constant parts": (
        lambda x: torch.cat([torch.full((2, 3, 3), 5.0), x, torch.full((2, 3, 2), 7.0)], -1),
        (X,),
    ),
    "put into a constant": (
        lambda x: aten.slice_scatter(torch.full((2, 3, 8), 5.0), x[..., :3], -1, -5, -2) * 2.0,
        (X,),
    ),
    "put into equal numbers": (
        lambda x, c: aten.slice_scatter((c.expand(2, 3, 8) * 2.0), x[..., :3], -1, 2, 5),
        (X, COLUMN),
    ),
    "sigmoid, tanh, erf, exp": (
        lambda x: torch.sigmoid(x) + torch.tanh(x) * torch.erf(x) - torch.exp(-x.abs()),
        (X,),
    ),
    "minimum and maximum": (lambda x, y: torch.minimum(x, y) - torch.maximum(x, y), (X, Y)),
    "one dimension": (lambda r: r * torch.rsqrt((r * r).mean(-1, keepdim=True)), (ROW,)),
    "permuted": (lambda x: x.permute(1, 0, 2) * 2.0, (X,)),
    "broadcast rows": (lambda x, y: x + y[:, :1], (X, Y)),
    "some rows": (lambda x: x[:, 1:] * x[:, :2], (X,)),
}


@pytest.mark.parametrize("name", ONE_PROGRAM)
def test_one_program(name: str) -> None:
    function, inputs = ONE_PROGRAM[name]
    found = check(function, *inputs)
    assert kernels(found) == {"rows_1": 1}


def test_chains_of_layouts_between_are_strides() -> None:
    """Heads of a projection, scaled after they were split and merged again: two programs, as a row is
    another than before, and no copy."""

    def function(x: torch.Tensor) -> torch.Tensor:
        heads = (x * 2.0).view(2, 3, 2, 4).permute(0, 2, 1, 3)
        return heads.clone(memory_format=torch.contiguous_format) + 1.0

    found = check(function, X)
    assert kernels(found) == {"rows_1": 2}
    assert [made.dims for made in row_programs(found)] == [(2, 3), (2, 2, 3)]


def test_heads_of_an_input_are_read_by_strides() -> None:
    found = check(lambda x: x.view(2, 3, 2, 4).permute(0, 2, 1, 3) + 1.0, X)
    (made,) = row_programs(found)
    assert made.dims == (2, 2, 3) and made.reads == [Read(4, 0, (24, 4, 8))]


def test_repeated_rows_are_read_with_a_stride_of_zero() -> None:
    found = check(lambda x, r: x * r, X, ROW)
    assert row_programs(found)[0].reads[1] == Read(8, 0, (0, 0))
    found = check(lambda x, c: x * c.expand(2, 3, 8), X, COLUMN)
    assert row_programs(found)[0].reads[1] == Read(1, 0, (3, 1))


def test_a_constant_result_is_made_by_the_runtime() -> None:
    found = check(lambda x: (x * 2.0, torch.full((2, 3), 5.0)), X)
    assert kernels(found) == {"rows_1": 1, "full": 1}


def test_products_part_the_programs() -> None:
    found = check(lambda x, w: torch.tanh(torch.tanh(x).view(6, 8) @ w) * 2.0, X, W)
    assert kernels(found) == {"rows_1": 2, "matmul": 1}


def test_a_value_that_two_products_read_is_stored_once() -> None:
    def shared(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        y = torch.tanh(x)
        return y @ w, y @ (2.0 * w)

    assert kernels(check(shared, X[0], W)) == {"rows_1": 2, "matmul": 2}


def test_results_of_the_same_values_are_one_program() -> None:
    found = check(lambda x, y: (x * y, x + y, x - y), X, Y)
    assert kernels(found) == {"rows_3": 1}
    (made,) = row_programs(found)
    assert len(made.reads) == 2 and len(made.outputs) == 3


def test_results_of_other_values_are_not() -> None:
    assert kernels(check(lambda x, y: (x * 2.0, y * 2.0), X, Y)) == {"rows_1": 2}
    # Nor of one that needs another.
    found = check(lambda x, w: (torch.tanh(x), torch.tanh(x @ w) * x), X[0], W)
    assert kernels(found) == {"rows_1": 2, "matmul": 1}


def test_seven_results_are_two_programs() -> None:
    found = check(lambda x: tuple(x * float(number) for number in range(2, 9)), X)
    assert kernels(found) == {"rows_6": 1, "rows_1": 1}


def test_a_reduction_that_several_programs_read_is_stored() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        rstd = torch.rsqrt((x * x).mean(-1, keepdim=True))
        return x * rstd @ w, rstd * w[0]

    found = check(function, X[0], W)
    stored = [node.meta["val"].shape for inputs in reads(found) for node in inputs]
    assert (3, 1) in stored


BOOLEAN: dict[str, tuple[Callable[..., Any], Tensors]] = {
    "a table": (lambda x, m: torch.where(m, x * 2.0, -1.0), (X, MASK.expand(2, 3, 8).contiguous())),
    "a broadcast table": (lambda x, m: torch.where(m, x, 0.0).exp(), (X, MASK)),
    "of integers": (lambda x: torch.where(torch.arange(8) > 3, x * 2.0, 0.0), (X,)),
    "in a softmax": (lambda x, m: torch.softmax(torch.where(m, x, -1e9), -1) * 2.0, (X, MASK)),
}


@pytest.mark.parametrize("name", BOOLEAN)
def test_masks_that_are_stored_are_no_numbers(name: str) -> None:
    """The kernels read float32: a stored mask is read by the runtime's own operator."""
    function, inputs = BOOLEAN[name]
    found = check(function, *inputs)
    assert all(node.meta["val"].dtype == torch.float32 for given in reads(found) for node in given)
    assert kernels(found)["where"] == 1


def test_a_mask_that_is_computed_is_part_of_the_program() -> None:
    assert kernels(check(lambda x, y: torch.where(x > y, x, y) * 2.0, X, Y)) == {"rows_1": 1}


def test_a_mask_that_is_returned_is_made_by_the_runtime() -> None:
    assert kernels(check(lambda x: (x > 0, x * 2.0), X)) == {"gt": 1, "rows_1": 1}


def test_what_strides_cannot_say_stays_plain() -> None:
    """A transposed row is no row in memory."""
    found = check(lambda x: torch.tanh(x.permute(0, 2, 1)), X)
    assert kernels(found)["tanh"] == 1 and not row_programs(found)


def test_the_rest_is_fused_beside_what_stays_plain() -> None:
    found = check(lambda x: torch.cumsum(torch.tanh(x) * 2.0, -1) * 3.0, X)
    assert kernels(found) == {"rows_1": 2, "cumsum": 1}


def test_six_dimensions_of_rows_are_too_many() -> None:
    x = values(1, 2, 1, 2, 1, 2, 4)
    assert kernels(check(lambda x: x * 2.0, x)) == {"mul": 1}
    assert kernels(check(lambda x: x * 2.0, x[0])) == {"rows_1": 1}


def test_an_input_may_be_returned_in_another_shape() -> None:
    found = check(lambda x: (x.view(6, 8), torch.tanh(x).view(6, 8)), X)
    assert kernels(found) == {"rows_1": 1}
    assert len(output_node(found.module).all_input_nodes) == 2


@pytest.mark.parametrize(("rows", "together"), [(16, True), (1024, False)])
def test_large_results_are_made_one_after_the_other(rows: int, together: bool) -> None:
    x, y = values(rows, 1200), values(rows, 1200, seed=1)
    found = check(lambda x, y: (torch.tanh(x) * y, x + y), x, y)
    assert kernels(found) == ({"rows_2": 1} if together else {"rows_1": 2})


# --- layers of models -----------------------------------------------------------------------------

LAYERS = {
    ("llama", "fp32"): ({"rows_1": 9}, {"rows_1": 22, "rows_3": 1}),
    ("gpt2", "int4"): ({"rows_1": 5, "rows_3": 1}, {"rows_1": 14, "rows_2": 1, "rows_3": 1}),
    ("bloom", "fp32"): ({"rows_1": 7, "rows_3": 1}, {"rows_1": 18, "rows_2": 1, "rows_6": 1}),
    ("phi3", "fp32"): ({"rows_1": 6, "rows_2": 1}, {"rows_1": 17, "rows_2": 2}),
}


@pytest.mark.parametrize(("name", "weights"), LAYERS)
def test_a_layer_is_products_and_few_row_programs(name: str, weights: str) -> None:
    graph, _ = tiny_graph(name, weights=weights)
    for family, expected in zip(
        ("layer.0", "layer.0.backward"), LAYERS[name, weights], strict=True
    ):
        made = graph.programs[f"{family}@32"]
        found = fused(made)
        products = {"matmul", "add_matmul", "linear_int4", "linear_int4_input_gradient"}
        products |= {"attention", "attention_gradient"}
        assert {op: n for op, n in kernels(found).items() if op not in products} == expected
        given = arguments(graph, made)
        for ours, theirs in zip(found.module(*given), made.module(*given), strict=True):
            assert theirs.norm() > 1e-3 and difference(ours, theirs) < 2e-6


def squares(program: Program) -> list[str]:
    """The calls of a program that give a number for each pair of 48 tokens."""
    return [
        str(node.target).split(".")[1]
        for node in program.module.graph.nodes
        if node.op == "call_function"
        and tuple(getattr(node.meta["val"], "shape", ()))[-2:] == (48, 48)
        and not is_call(node, aten.view)
    ]


def test_softmax_rows_are_computed_with_their_mask() -> None:
    graph, _ = tiny_graph("bloom")
    # Scores of every pair are written by their product and by the softmax, and by nothing else.
    assert squares(fused(graph.programs["layer.0@48"])) == ["matmul", "rows_1"]


def test_attention_writes_no_matrix_of_scores() -> None:
    graph, _ = tiny_graph("llama")
    for name in ("layer.0@48", "layer.0.backward@48"):
        assert squares(fused(graph.programs[name])) == []


def test_a_chain_that_needs_too_many_registers_is_divided() -> None:
    """Unrolled scans of Mamba are one such chain; the runtime's programs have at most 256 registers."""

    def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = x
        for step in range(300):
            total = total * 0.5 + y * (step + 1)
        return total

    found = check(chain, X, Y)
    assert len(row_programs(found)) > 1


def test_results_that_need_too_many_registers_together_are_computed_apart() -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = x, y
        for step in range(60):
            first = first * 0.5 + y * (step + 1)
            second = second * 0.25 + x * (step + 2)
        return first, second

    assert len(row_programs(check(both, X, Y))) > 1
