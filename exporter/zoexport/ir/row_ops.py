"""Row programs: the operators ``zoexport::rows_1`` ... ``rows_6``, a short program run on every row of its inputs.

What a decoder layer computes between its products (norms, softmax, gates, rotary embeddings, and their gradients)
treats each row alone, or moves rows. One such operator holds any part of it, so that nothing in between is ever stored.
The encoding is what ``runtime_ops/kernels/row_program.h`` reads.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from zoexport.ir.declare import declare

MOST_OUTPUTS = 6


class Op(enum.IntEnum):
    """Instructions; elementwise ones broadcast operands of width 1."""

    ADD, SUB, MUL, DIV, MAX, MIN = range(6)
    NEG, EXP, LOG, SQRT, RSQRT, RECIPROCAL, SIGMOID, TANH, ERF, ABS = range(10, 20)
    LT, LE, GT, GE, EQ, NE, SELECT = range(20, 27)
    SUM, MAXIMUM = 30, 31
    SLICE, PUT, FILL = 40, 41, 42


@dataclasses.dataclass(frozen=True)
class Read:
    """Layout of an input: ``width`` elements per row from ``offset``; strides of row dimensions."""

    width: int
    offset: int
    strides: tuple[int, ...]


@dataclasses.dataclass
class RowProgram:
    """A program over the rows of an iteration space.

    Attributes:
        dims: sizes of the iteration space.
        reads: of the inputs, which are the first registers.
        widths: of every register.
        outputs: the registers that are returned, each as (*dims, width).
        code: instructions (op, dst, a, b, c). An operand below 0 is ``constants[-1 - operand]``.
        constants: numbers in the code.
    """

    dims: tuple[int, ...]
    reads: list[Read] = dataclasses.field(default_factory=list)
    widths: list[int] = dataclasses.field(default_factory=list)
    outputs: list[int] = dataclasses.field(default_factory=list)
    code: list[tuple[int, int, int, int, int]] = dataclasses.field(default_factory=list)
    constants: list[float] = dataclasses.field(default_factory=list)

    def encoded(self) -> list[int]:
        """Return the program as numbers."""
        numbers = [len(self.dims), *self.dims, len(self.reads)]
        for read in self.reads:
            numbers += [read.width, read.offset, *read.strides]
        numbers += [len(self.widths), *self.widths, len(self.outputs), *self.outputs]
        return numbers + [number for line in self.code for number in line]


def decode(code: Sequence[int], constants: Sequence[float]) -> RowProgram:
    """Return the program that :meth:`RowProgram.encoded` wrote."""
    numbers = iter(code)
    dims = tuple(_take(numbers, next(numbers)))
    program = RowProgram(dims, constants=list(constants))
    for _ in range(next(numbers)):
        width, offset = _take(numbers, 2)
        program.reads.append(Read(width, offset, tuple(_take(numbers, len(dims)))))
    program.widths = _take(numbers, next(numbers))
    program.outputs = _take(numbers, next(numbers))
    rest = list(numbers)
    for start in range(0, len(rest), 5):
        op, dst, a, b, c = rest[start : start + 5]
        program.code.append((op, dst, a, b, c))
    return program


def _take(numbers: Iterator[int], count: int) -> list[int]:
    return [next(numbers) for _ in range(count)]


_UNARY: dict[int, Callable[[Tensor], Tensor]] = {
    Op.NEG: torch.neg,
    Op.EXP: torch.exp,
    Op.LOG: torch.log,
    Op.SQRT: torch.sqrt,
    Op.RSQRT: torch.rsqrt,
    Op.RECIPROCAL: torch.reciprocal,
    Op.SIGMOID: torch.sigmoid,
    Op.TANH: torch.tanh,
    Op.ERF: torch.erf,
    Op.ABS: torch.abs,
}
_BINARY: dict[int, Callable[[Tensor, Tensor], Tensor]] = {
    Op.ADD: torch.add,
    Op.SUB: torch.sub,
    Op.MUL: torch.mul,
    Op.DIV: torch.div,
    Op.MAX: torch.maximum,
    Op.MIN: torch.minimum,
    Op.LT: torch.lt,
    Op.LE: torch.le,
    Op.GT: torch.gt,
    Op.GE: torch.ge,
    Op.EQ: torch.eq,
    Op.NE: torch.ne,
}


def run_rows(
    inputs: Sequence[Tensor], code: Sequence[int], constants: Sequence[float]
) -> list[Tensor]:
    """Return the outputs of a row program, each float32 (*dims, width)."""
    program = decode(code, constants)
    registers: list[Tensor] = [
        torch.as_strided(
            value.contiguous(), (*program.dims, read.width), (*read.strides, 1), read.offset
        )
        for value, read in zip(inputs, program.reads, strict=True)
    ]
    registers += [torch.empty(0)] * (len(program.widths) - len(registers))

    def value(operand: int) -> Tensor:
        return registers[operand] if operand >= 0 else torch.tensor(constants[-1 - operand])

    for op, dst, a, b, c in program.code:
        width = program.widths[dst]
        if op in _UNARY:
            result = _UNARY[op](value(a))
        elif op in _BINARY:
            result = _BINARY[op](value(a), value(b)).to(torch.float32)
        elif op == Op.SELECT:
            result = torch.where(value(a) != 0, value(b), value(c))
        elif op == Op.SUM:
            result = value(a).sum(-1, keepdim=True)
        elif op == Op.MAXIMUM:
            result = value(a).amax(-1, keepdim=True)
        elif op == Op.SLICE:
            result = value(a)[..., c : c + width]
        elif op == Op.FILL:
            result = value(a)
        else:
            result = registers[dst].clone()
            result[..., c : c + program.widths[a]] = value(a)
        registers[dst] = result.expand(*program.dims, width)
    return [registers[number].contiguous() for number in program.outputs]


def _declare(count: int) -> None:
    def run(
        inputs: Sequence[Tensor], code: Sequence[int], constants: Sequence[float]
    ) -> Tensor | tuple[Tensor, ...]:
        found = run_rows(inputs, code, constants)
        return tuple(found) if count > 1 else found[0]

    def shapes(
        inputs: Sequence[Tensor], code: Sequence[int], constants: Sequence[float]
    ) -> Tensor | tuple[Tensor, ...]:
        program = decode(code, constants)
        found = [
            inputs[0].new_empty((*program.dims, program.widths[number]))
            for number in program.outputs
        ]
        return tuple(found) if count > 1 else found[0]

    outputs = tuple(f"out{number}" for number in range(count))
    declare(f"rows_{count}", "Tensor[] inputs, int[] code, float[] constants", outputs, run, shapes)


for _count in range(1, MOST_OUTPUTS + 1):
    _declare(_count)
