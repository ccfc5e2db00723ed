"""row_rules: what each rule leaves of an operator, and that values stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.programs import values
from tests.support.rows import kernels, program
from zoexport.ir.graphs import aten, copy_program, is_call
from zoexport.targets.executorch.row_rules import decompose

X = values(2, 3, 4)
Function = Callable[..., torch.Tensor]


def parts(x: torch.Tensor) -> torch.Tensor:
    first, _, last = aten.split_with_sizes(x, [1, 1, 2], -1)
    return first * last


def unbound(x: torch.Tensor) -> torch.Tensor:
    first, second = aten.unbind(x, 0)
    return first * second


CASES: dict[str, tuple[Function, tuple[torch.Tensor, ...], dict[str, int]]] = {
    "split: a slice for each part that is read": (parts, (X,), {"slice": 2, "mul": 1}),
    "unbind": (unbound, (X,), {"slice": 2, "squeeze": 2, "mul": 1}),
    "select": (lambda x: aten.select(x, 1, -1), (X,), {"slice": 1, "squeeze": 1}),
    "a short sum of heads": (
        lambda x: aten.sum(x, [1], True),
        (X,),
        {"slice": 3, "add": 2},
    ),
    "a short sum, its dimension left out": (
        lambda x: aten.sum(x, [1]),
        (X,),
        {"slice": 3, "add": 2, "squeeze": 1},
    ),
    "a sum over the row": (lambda x: aten.sum(x, [-1], True), (X,), {"sum": 1}),
    "a long sum": (lambda x: aten.sum(x, [0]), (values(17, 4),), {"sum": 1}),
    "an empty part": (lambda x: aten.cat([x, x[..., :0], x], -1), (X,), {"cat": 1}),
    "empty parts beside one": (lambda x: aten.cat([x[..., :0], x], -1), (X,), {"clone": 1}),
    "an empty part put into another": (
        lambda x: aten.slice_scatter(x * 2.0, x[..., :0], 2, 4, 4),
        (X,),
        {"mul": 1, "clone": 1},
    ),
    "some of the heads": (
        lambda x, y: aten.slice_scatter(x, y * 2.0, 1, -2, -1),
        (X, values(2, 1, 4, seed=1)),
        {"mul": 1, "reshape": 2, "slice_scatter": 1},
    ),
    "every other head": (
        lambda x, y: aten.slice_scatter(x, y * 2.0, 1, 0, None, 2),
        (X, values(2, 2, 4, seed=1)),
        {"mul": 1, "slice_scatter": 1},
    ),
    "a sum of regrouped rows": (
        lambda x, y: aten.view(x, [2, 3, 2, 2]) + aten.view(y, [2, 3, 2, 2]),
        (X, values(2, 3, 4, seed=1)),
        {"add": 1},
    ),
    "a permuted multiple": (lambda x: (x * 0.5).permute(0, 2, 1), (X,), {"permute": 1, "mul": 1}),
    "gelu stays": (lambda x: aten.gelu(x), (X,), {"gelu": 1}),
    "addmm with factors": (
        lambda c, a, b: aten.addmm(c, a, b, beta=2.0, alpha=0.5),
        (values(5), values(3, 4), values(4, 5)),
        {"mm": 1, "mul": 2, "add": 1},
    ),
    "addmm": (
        lambda c, a, b: aten.addmm(c, a, b),
        (values(5), values(3, 4), values(4, 5)),
        {"mm": 1, "add": 1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    function, inputs, expected = CASES[name]
    made = program(function, *inputs)
    rewritten = copy_program(made, made.name)
    decompose(rewritten)
    found = kernels(rewritten)
    assert found == expected
    torch.testing.assert_close(rewritten.module(*inputs)[0], function(*inputs))


def test_sums_and_multiples_stand_before_and_after_the_layouts() -> None:
    def order(function: Function, *inputs: torch.Tensor) -> list[str]:
        made = program(function, *inputs)
        decompose(made)
        calls = [node for node in made.module.graph.nodes if node.op == "call_function"]
        return [str(node.target).split(".")[1] for node in calls]

    seen = order(lambda x, y: aten.view(x, [2, 12]) + aten.view(y, [2, 12]), X, X)
    assert seen == ["add", "view"]
    # Rows that stay as they are may be read either way.
    assert order(lambda x, y: aten.view(x, [6, 4]) + aten.view(y, [6, 4]), X, X)[-1] == "add"
    assert order(lambda x: (x * 0.5).permute(0, 2, 1), X) == ["permute", "mul"]


def test_heads_are_put_into_rows_of_all_heads() -> None:
    """As the gradient of heads that were picked is; every other one is left as it was."""

    def axes(*place: int | None) -> list[object]:
        made = program(lambda x, y: aten.slice_scatter(x, y, 1, *place), X, X[:, :1])
        decompose(made)
        return [
            [*node.args[2:], *node.meta["val"].shape]
            for node in made.module.graph.nodes
            if is_call(node, aten.slice_scatter)
        ]

    assert axes(-2, -1) == [[1, 4, 8, 2, 12]] and axes(2) == [[1, 8, 12, 2, 12]]
    assert axes(1, None, 2) == [[1, 1, None, 2, 2, 3, 4]]


@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm_is_means_and_products(affine: bool) -> None:
    inputs = (X, values(4, seed=1), values(4, seed=2)) if affine else (X,)

    def function(x: torch.Tensor, *affine: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found: tuple[torch.Tensor, ...] = aten.native_layer_norm(
            x, [4], *(affine or (None, None)), 1e-5
        )
        return found

    made = program(function, *inputs)
    rewritten = copy_program(made, made.name)
    decompose(rewritten)
    assert set(kernels(rewritten)) <= {"mean", "sub", "mul", "add", "rsqrt"}
    for found, wanted in zip(rewritten.module(*inputs), function(*inputs), strict=True):
        torch.testing.assert_close(found, wanted)
