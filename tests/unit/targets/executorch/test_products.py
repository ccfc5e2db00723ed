"""products: every product of two tensors is one kernel, whatever transposes and heads stand around it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.graphs import operators
from tests.support.programs import values
from tests.support.rows import last, program
from zoexport.core.graph import Program
from zoexport.ir.graphs import aten, copy_program, is_call, zo
from zoexport.targets.executorch.layouts import resolved, strided
from zoexport.targets.executorch.products import write_products

A, B = values(6, 4), values(4, 5, seed=1)
Q, K = values(2, 8, 12), values(2, 8, 12, seed=1)
"""Projections (rows, length, heads * size) of 3 heads of size 4."""


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(2, 8, 3, 4).permute(0, 2, 1, 3)


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """As aten.matmul of heads is traced."""
    turned = heads(k).permute(0, 1, 3, 2)
    left = heads(q).expand(2, 3, 8, 4).clone(memory_format=torch.contiguous_format).view(6, 8, 4)
    right = turned.expand(2, 3, 4, 8).clone(memory_format=torch.contiguous_format).view(6, 4, 8)
    return aten.bmm(left, right)


def key_gradient(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """A saved transposed key, flattened and transposed once more."""
    right = heads(k).permute(0, 1, 3, 2).clone(memory_format=torch.contiguous_format)
    ds = aten.bmm(
        heads(q).clone(memory_format=torch.contiguous_format).view(6, 8, 4), right.view(6, 4, 8)
    )
    return aten.bmm(ds, aten.permute(right.view(6, 4, 8), [0, 2, 1]))


CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], list[tuple[bool, bool]]]] = {
    "mm": (aten.mm, (A, B), [(False, False)]),
    "of a transposed left": (lambda a, b: aten.mm(aten.t(a), b), (A.t().contiguous(), B), [(True, False)]),
    "of a transposed right": (lambda a, b: aten.mm(a, aten.t(b)), (A, B.t().contiguous()), [(False, True)]),
    "of both": (
        lambda a, b: aten.mm(aten.permute(a, [1, 0]), aten.permute(b, [1, 0])),
        (A.t().contiguous(), B.t().contiguous()),
        [(True, True)],
    ),
    "transposed twice": (lambda a, b: aten.mm(aten.t(aten.t(a)), b), (A, B), [(False, False)]),
    "bmm": (aten.bmm, (values(3, 6, 4), values(3, 4, 5)), [(False, False)]),
    "rows by a matrix": (aten.matmul, (values(2, 3, 4), B), [(False, False)]),
    "heads": (scores, (Q, K), [(False, True)]),
    "a saved transposed key": (key_gradient, (Q, K), [(False, True), (False, False)]),
}  # fmt: skip


def written(made: Program) -> Program:
    copy = copy_program(made, made.name)
    write_products(copy)
    return copy


def products(made: Program) -> list:
    return [node for node in made.module.graph.nodes if is_call(node, zo.matmul)]


@pytest.mark.parametrize("name", CASES)
def test_products(name: str) -> None:
    function, inputs, expected = CASES[name]
    made = program(function, *inputs)
    found = written(made)
    flags = [(bool(node.args[2]), bool(node.args[3])) for node in products(found)]
    assert flags == expected
    assert not {"aten.mm.default", "aten.bmm.default", "aten.addmm.default"} & set(operators(found))
    torch.testing.assert_close(found.module(*inputs)[0], function(*inputs))


@pytest.mark.parametrize("name", ["heads", "a saved transposed key"])
def test_heads_are_read_from_the_projections(name: str) -> None:
    """Every operand is a view of an input whose rows are contiguous, or a result: nothing is turned in memory."""
    function, inputs, _ = CASES[name]
    for node in products(written(program(function, *inputs))):
        for operand in node.args[:2]:
            base, layouts = resolved(operand)
            assert base.op == "placeholder" or is_call(base, zo.matmul)
            assert strided(base.meta["val"].shape, layouts, ()).stride(-1) == 1


@pytest.mark.parametrize(
    "read",
    [
        lambda c: aten.permute(c, [0, 2, 1]),
        lambda c: aten.permute(aten.view(c, [1, 3, 6, 5]), [0, 1, 3, 2]),
        lambda c: aten.permute(aten.view(c, [1, 3, 6, 5]), [0, 3, 1, 2]),  # by columns
    ],
)
def test_a_product_that_is_read_transposed_is_computed_transposed(
    read: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    inputs = values(3, 6, 4), values(3, 4, 5)
    found = written(program(lambda a, b: aten.mul(read(aten.bmm(a, b)), 1.0), *inputs))
    (product,) = products(found)
    # (b^T a^T): rows of the result are then what is read.
    assert product.args[2:] == (True, True) and product.meta["val"].shape[-2:] == (5, 6)
    (given,) = (node for node in last(found).all_input_nodes)
    base, layouts = resolved(given)
    assert base is product and strided(base.meta["val"].shape, layouts, ()).stride(-1) == 1
    torch.testing.assert_close(found.module(*inputs)[0], read(inputs[0] @ inputs[1]))


@pytest.mark.parametrize(
    "read",
    [
        lambda c: aten.permute(c, [1, 0, 2]),  # leading dimensions
        lambda c: (aten.permute(c, [0, 2, 1]), aten.mul(c, 2.0)),  # two readers
        lambda c: aten.permute(aten.view(c, [3, 30, 1]), [0, 2, 1]),  # no longer the matrix
    ],
)
def test_others_stay_upright(read: Callable[[torch.Tensor], torch.Tensor]) -> None:
    inputs = values(3, 6, 4), values(3, 4, 5)
    (product,) = products(written(program(lambda a, b: read(aten.bmm(a, b)), *inputs)))
    assert product.args[2:] == (False, False)


def test_batches_of_unlike_rank_are_repeated() -> None:
    inputs = values(2, 1, 6, 4), values(3, 4, 5)
    found = written(program(aten.matmul, *inputs))
    torch.testing.assert_close(found.module(*inputs)[0], inputs[0] @ inputs[1])
    assert len(products(found)) == 1


# --- sums of products ------------------------------------------------------------------------------

X, U = values(2, 8, 6), values(2, 8, 3, seed=1)
W, V = values(10, 6, seed=2), values(3, 10, seed=3)


def layer(x: torch.Tensor, u: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A layer, and what an adapter adds to it."""
    return aten.add(
        aten.matmul(x, aten.t(w)), aten.view(aten.mm(aten.view(u, [16, 3]), v), [2, 8, 10])
    )


def test_an_adapter_adds_to_its_layer() -> None:
    found = written(program(layer, X, U, W, V))
    assert {"zoexport.matmul.default", "zoexport.add_matmul.default"} <= {*operators(found)}
    assert len(products(found)) == 1 and "aten.add.Tensor" not in operators(found)
    torch.testing.assert_close(found.module(X, U, W, V)[0], layer(X, U, W, V))


def test_a_sum_that_is_turned_and_doubled() -> None:
    def gradient(
        x: torch.Tensor, u: torch.Tensor, w: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        added = aten.add(
            aten.mm(aten.t(v), aten.t(aten.view(u, [16, 3]))),
            aten.mm(w, aten.t(aten.view(x, [16, 6]))),
        )
        return aten.mul(added, 2.0)

    found = written(program(gradient, X, U, W, V))
    assert operators(found)["zoexport.add_matmul.default"] == 1
    torch.testing.assert_close(found.module(X, U, W, V)[0], gradient(X, U, W, V))


@pytest.mark.parametrize("rows", [8, 8192])
def test_a_factor_is_of_the_smaller_operand_where_that_is_worth_a_call(rows: int) -> None:
    def scaled(x: torch.Tensor, u: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return aten.add(aten.mm(x, aten.t(w)), aten.mul(aten.mm(u, v), 2.0))

    inputs = values(rows, 6), values(rows, 3, seed=1), W, V
    found = written(program(scaled, *inputs))
    fused = "zoexport.add_matmul.default" in operators(found)
    assert fused == (rows > 8)
    (factor,) = (node for node in found.module.graph.nodes if is_call(node, aten.mul))
    assert factor.meta["val"].shape == ((rows, 3) if fused else (rows, 10))
    torch.testing.assert_close(found.module(*inputs)[0], scaled(*inputs))


def test_what_others_read_is_not_added_to() -> None:
    def twice(
        x: torch.Tensor, u: torch.Tensor, w: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        y, added = aten.mm(x, aten.t(w)), aten.mm(u, v)
        return aten.add(y, added), aten.neg(y), aten.neg(added)

    inputs = values(8, 6), values(8, 3, seed=1), W, V
    found = written(program(twice, *inputs))
    assert "aten.add.Tensor" in operators(found) and len(products(found)) == 2
    for ours, theirs in zip(found.module(*inputs), twice(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_sum_over_broadcast_rows_stays() -> None:
    def broadcast(
        x: torch.Tensor, u: torch.Tensor, w: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        return aten.add(aten.mm(x, aten.t(w)), aten.mm(u, v))

    inputs = values(8, 6), values(1, 3, seed=1), W, V
    found = written(program(broadcast, *inputs))
    assert "aten.add.Tensor" in operators(found)
    torch.testing.assert_close(found.module(*inputs)[0], broadcast(*inputs))
