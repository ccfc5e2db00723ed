"""Row programs in torch: every instruction against a plain statement of it, reads, and the encoding."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.support.programs import lower, values
from zoexport.ir.graphs import zo
from zoexport.ir.row_ops import MOST_OUTPUTS, Op, Read, RowProgram, decode, run_rows

ROWS, WIDTH = 3, 7


def program(
    widths: list[int],
    code: list[tuple[int, int, int, int, int]],
    *,
    inputs: int = 1,
    outputs: tuple[int, ...] = (),
    constants: tuple[float, ...] = (),
) -> RowProgram:
    """A program over contiguous inputs of ROWS rows; the last register is returned."""
    reads = [Read(width, 0, (width,)) for width in widths[:inputs]]
    found = list(outputs or (len(widths) - 1,))
    return RowProgram((ROWS,), reads, widths, found, code, list(constants))


def run(made: RowProgram, *inputs: torch.Tensor) -> list[torch.Tensor]:
    return run_rows(inputs, made.encoded(), made.constants)


def elementwise(function: Callable[..., float], *rows: torch.Tensor) -> torch.Tensor:
    """Number by number in double precision; rows of width 1 are repeated."""
    wide = [row.expand(ROWS, WIDTH).double() for row in rows]
    result = [
        [function(*(float(row[i, j]) for row in wide)) for j in range(WIDTH)] for i in range(ROWS)
    ]
    return torch.tensor(result, dtype=torch.float64).float()


UNARY = {
    Op.NEG: lambda a: -a,
    Op.EXP: math.exp,
    Op.LOG: lambda a: math.log(a),
    Op.SQRT: math.sqrt,
    Op.RSQRT: lambda a: 1 / math.sqrt(a),
    Op.RECIPROCAL: lambda a: 1 / a,
    Op.SIGMOID: lambda a: 1 / (1 + math.exp(-a)),
    Op.TANH: math.tanh,
    Op.ERF: math.erf,
    Op.ABS: abs,
}
BINARY = {
    Op.ADD: lambda a, b: a + b,
    Op.SUB: lambda a, b: a - b,
    Op.MUL: lambda a, b: a * b,
    Op.DIV: lambda a, b: a / b,
    Op.MAX: max,
    Op.MIN: min,
    Op.LT: lambda a, b: a < b,
    Op.LE: lambda a, b: a <= b,
    Op.GT: lambda a, b: a > b,
    Op.GE: lambda a, b: a >= b,
    Op.EQ: lambda a, b: a == b,
    Op.NE: lambda a, b: a != b,
}
POSITIVE = (Op.LOG, Op.SQRT, Op.RSQRT, Op.RECIPROCAL)
OTHERS = {Op.SELECT, Op.SUM, Op.MAXIMUM, Op.SLICE, Op.PUT, Op.FILL}


def test_every_instruction_is_tested() -> None:
    assert set(Op) == UNARY.keys() | BINARY.keys() | OTHERS


@pytest.mark.parametrize("op", UNARY)
def test_unary(op: Op) -> None:
    x = values(ROWS, WIDTH)
    x = x.abs() + 0.1 if op in POSITIVE else x
    (found,) = run(program([WIDTH, WIDTH], [(op, 1, 0, 0, 0)]), x)
    torch.testing.assert_close(found, elementwise(UNARY[op], x))


@pytest.mark.parametrize("op", BINARY)
def test_binary(op: Op) -> None:
    a, b = values(ROWS, WIDTH).round(), values(ROWS, WIDTH, seed=1).round()
    b = b + 0.5 if op == Op.DIV else b
    (found,) = run(program([WIDTH, WIDTH, WIDTH], [(op, 2, 0, 1, 0)], inputs=2), a, b)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, elementwise(BINARY[op], a, b))


@pytest.mark.parametrize("swapped", [False, True])
def test_a_column_and_a_constant_are_repeated_along_the_row(swapped: bool) -> None:
    x, column = values(ROWS, WIDTH), values(ROWS, 1, seed=1)
    first, second = (1, 0) if swapped else (0, 1)
    code = [(Op.SUB, 2, first, second, 0), (Op.MUL, 3, 2, -2, 0), (Op.ADD, 4, -1, 3, 0)]
    made = program([WIDTH, 1, WIDTH, WIDTH, WIDTH], code, inputs=2, constants=(0.25, -3.0))
    expected = (column - x if swapped else x - column) * -3.0 + 0.25
    torch.testing.assert_close(run(made, x, column)[0], expected)


def test_select() -> None:
    mask = torch.tensor([0.0, 1.0, -1.0, 0.0, 5.0, 0.0, 1.0]).repeat(ROWS, 1)
    x, y = values(ROWS, WIDTH), values(ROWS, WIDTH, seed=1)
    made = program([WIDTH] * 4, [(Op.SELECT, 3, 0, 1, 2)], inputs=3)
    assert torch.equal(run(made, mask, x, y)[0], torch.where(mask != 0, x, y))


@pytest.mark.parametrize(
    ("op", "plain"), [(Op.SUM, sum), (Op.MAXIMUM, max)], ids=["sum", "maximum"]
)
def test_reductions(op: Op, plain: Callable[[list[float]], float]) -> None:
    x = values(ROWS, WIDTH)
    (found,) = run(program([WIDTH, 1], [(op, 1, 0, 0, 0)]), x)
    torch.testing.assert_close(found, torch.tensor([[plain(row)] for row in x.tolist()]))


def test_slice_put_and_fill() -> None:
    x = values(ROWS, WIDTH)
    code = [(Op.SLICE, 1, 0, 0, 4), (Op.FILL, 2, -1, 0, 0), (Op.PUT, 2, 1, 0, 1)]
    (found,) = run(program([WIDTH, 2, 5], code, constants=(9.0,)), x)
    nine = torch.full((ROWS, 1), 9.0)
    assert torch.equal(found, torch.cat([nine, x[:, 4:6], nine, nine], -1))


def test_a_register_can_be_filled_from_a_column() -> None:
    column = values(ROWS, 1)
    (found,) = run(program([1, 4], [(Op.FILL, 1, 0, 0, 0)]), column)
    assert torch.equal(found, column.expand(ROWS, 4)) and found.is_contiguous()


def test_reads_by_strides() -> None:
    """Rows of (2, 3, 4) read as its second and third element of each, heads first, and one row for all."""
    x, table = values(2, 3, 4), values(6, seed=1)
    made = RowProgram(
        (3, 2),
        [Read(2, 1, (4, 12)), Read(2, 4, (0, 0))],
        [2, 2, 2],
        [2],
        [(Op.ADD, 2, 0, 1, 0)],
    )
    (found,) = run(made, x, table)
    assert torch.equal(found, x.permute(1, 0, 2)[..., 1:3] + table[4:])


def test_encoding_and_decoding() -> None:
    made = RowProgram(
        (2, 5),
        [Read(3, 1, (4, 0)), Read(1, 0, (1, 2))],
        [3, 1, 3, 1],
        [2, 3],
        [(Op.MUL, 2, 0, 1, 0), (Op.SUM, 3, 2, 0, 0)],
        [0.5, -1.0],
    )
    numbers = made.encoded()
    dims, reads, widths, outputs = (
        [2, 2, 5],
        [2, 3, 1, 4, 0, 1, 0, 1, 2],
        [4, 3, 1, 3, 1],
        [2, 2, 3],
    )
    code = [2, 2, 0, 1, 0, 30, 3, 2, 0, 0]
    assert numbers == dims + reads + widths + outputs + code
    assert decode(numbers, made.constants) == made


@pytest.mark.parametrize("count", range(1, MOST_OUTPUTS + 1))
def test_the_operators_give_as_many_outputs_in_torch_and_in_ExecuTorch(count: int) -> None:
    x = values(ROWS, WIDTH)
    code = [(Op.MUL, 1 + number, 0, -1 - number, 0) for number in range(count)]
    made = program(
        [WIDTH] * (count + 1),
        code,
        outputs=tuple(range(1, count + 1)),
        constants=tuple(float(number + 2) for number in range(count)),
    )
    operator = getattr(zo, f"rows_{count}")

    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = operator([x], made.encoded(), made.constants)
        return found if count > 1 else (found,)

    expected = [x * (number + 2) for number in range(count)]
    for results in (call(x), lower(call, (x,)).execute((x,))):
        assert len(results) == count
        for found, wanted in zip(results, expected, strict=True):
            assert torch.equal(found, wanted)
