"""Row programs as the Vulkan engine runs them: phases over the columns of a row, without a row in between.

A thread of a GPU has no room for whole rows, so a phase computes what it needs of a column from the inputs again, and
keeps numbers alone. For softmax, with x read by the program::

    phase 0: m = maximum of x                      over all columns
    phase 1: s = sum of exp(x - m)
    phase 2: store exp(x - m) * (1 / s)

Each phase is straight-line code over registers of one column. What has one value for all columns, such as 1 / s, is
computed once, before them. Slices and parts that were put together become reads of another column, chosen by where the
column lies.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from zoexport.ir.row_ops import Op, RowProgram

MOST_REGISTERS = 40
"""Of a phase: they are a thread's (``runtime_ops/engines/vulkan/row_module.cpp``)."""
MOST_READS = 32
MOST_REDUCTIONS = 16
MOST_RESULTS = 8
"""Of a phase."""
LOAD, CHOOSE = 50, 51
"""Instructions that row programs do not have.

LOAD: the element of read a at column + b, or at b itself where c is 1. CHOOSE: a where c <= column < d, else b.
"""
CONSTANT, REDUCED = 1 << 30, 1 << 29
"""Added to an operand that is no register: the number of a constant, or of a reduction of an earlier phase."""

_ONE_OPERAND = range(Op.NEG, Op.ABS + 1)
_REDUCTIONS = (Op.SUM, Op.MAXIMUM)
_GIVEN = ("constant", "reduced")


class NotPhases(Exception):
    """A row program that needs more than the engine has; the message says of what."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """One pass over the columns of a row.

    Attributes:
        width: columns.
        once: how many of the instructions run before the columns, and have one value for all of them.
        code: instructions (op, dst, a, b, c, d).
        results: (kind, operand, target): "store" to the output ``target``, "sum" or "max" to the reduction of that
            number.
    """

    width: int
    once: int
    code: tuple[tuple[int, int, int, int, int, int], ...]
    results: tuple[tuple[str, int, int], ...]


def phases_of(program: RowProgram) -> list[Phase]:
    """Return the phases of a row program.

    Raises:
        NotPhases: it needs too many registers, reads or reductions.
    """
    if len(program.reads) > MOST_READS:
        raise NotPhases(f"{len(program.reads)} reads; at most {MOST_READS}")
    return _Phases(program).found


class _Column(NamedTuple):
    """Column of a value: ``offset`` relative to the current column, or absolute if ``fixed``."""

    offset: int
    fixed: bool = False


_HERE = _Column(0)
_FIRST = _Column(0, fixed=True)


class _Value(NamedTuple):
    """Result of an instruction; if ``op`` is "constant" or "reduced", ``bounds`` has its number."""

    op: int | str
    operands: tuple[int, ...] = ()
    """Numbers of values."""
    bounds: tuple[int, ...] = ()


class _Phases:
    def __init__(self, program: RowProgram) -> None:
        self.program = program
        self.writes: dict[int, list[tuple[int, int, int, int, int]]] = {}
        for line in program.code:
            self.writes.setdefault(line[1], []).append(line)
        self.values: list[_Value] = []
        self.numbers: dict[_Value, int] = {}
        self.same: list[bool] = []
        """Of every value, whether it is the same in all columns."""
        self.level: list[int] = []
        """Of every value, how many reductions come before it, one after another."""
        self.known: dict[tuple[int, _Column], int] = {}
        registers = [dst for op, dst, *_ in program.code if op in _REDUCTIONS]
        if len(registers) > MOST_REDUCTIONS:
            raise NotPhases(f"{len(registers)} reductions; at most {MOST_REDUCTIONS}")
        self.reductions = {register: number for number, register in enumerate(registers)}
        self.levels: list[int] = []
        self.found: list[Phase] = []
        self._reduce()
        self._store()

    def _reduce(self) -> None:
        groups: dict[tuple[int, int], list[tuple[str, int, int]]] = {}
        for op, dst, a, _, _ in self.program.code:
            if op in _REDUCTIONS:
                value = self._value(a, _HERE)
                self.levels.append(1 + self.level[value])
                kind = "sum" if op == Op.SUM else "max"
                group = groups.setdefault((self.level[value], self._width(a)), [])
                group.append((kind, value, self.reductions[dst]))
        for (_, width), results in sorted(groups.items(), key=lambda item: item[0]):
            self._write(width, results)

    def _store(self) -> None:
        groups: dict[int, list[tuple[str, int, int]]] = {}
        for number, register in enumerate(self.program.outputs):
            value = self._value(register, _HERE)
            groups.setdefault(self._width(register), []).append(("store", value, number))
        for width, results in groups.items():
            self._write(width, results)

    def _write(self, width: int, results: list[tuple[str, int, int]]) -> None:
        for first in range(0, len(results), MOST_RESULTS):
            self.found.append(self._phase(width, results[first : first + MOST_RESULTS]))

    def _width(self, operand: int) -> int:
        return 1 if operand < 0 else self.program.widths[operand]

    # --- values ------------------------------------------------------------------------------------

    def _value(self, operand: int, column: _Column) -> int:
        """Return the number of an operand's value in a column."""
        if self._width(operand) == 1:
            column = _FIRST
        key = operand, column
        if key not in self.known:
            self.known[key] = self._made(operand, column)
        return self.known[key]

    def _made(self, operand: int, column: _Column) -> int:
        if operand < 0:
            return self._number(_Value("constant", bounds=(-1 - operand,)))
        if operand < len(self.program.reads):
            return self._number(_Value(LOAD, bounds=(operand, column.offset, int(column.fixed))))
        if operand in self.reductions:
            return self._number(_Value("reduced", bounds=(self.reductions[operand],)))
        lines = self.writes[operand]
        if len(lines) > 1 or lines[0][0] == Op.PUT:
            return self._assembled(lines, column)
        op, _, a, b, c = lines[0]
        if op == Op.SLICE:
            return self._value(a, column._replace(offset=column.offset + c))
        if op == Op.FILL:
            return self._value(a, column)
        count = 3 if op == Op.SELECT else 1 if op in _ONE_OPERAND else 2
        return self._number(
            _Value(op, tuple(self._value(one, column) for one in (a, b, c)[:count]))
        )

    def _assembled(self, lines: list[tuple[int, int, int, int, int]], column: _Column) -> int:
        """Return the number of a column's value in overlapping parts."""
        value: int | None = None
        for op, _, a, _, c in lines:
            if op == Op.FILL:
                value = self._value(a, column)
                continue
            inside = column._replace(offset=column.offset - c)
            if column.fixed:
                if 0 <= inside.offset < self._width(a):
                    value = self._value(a, inside)
                continue
            part = self._value(a, inside)
            # The first part needs no bounds: the other parts cover all columns outside it.
            bounds = -inside.offset, self._width(a) - inside.offset
            value = part if value is None else self._number(_Value(CHOOSE, (part, value), bounds))
        assert value is not None
        return value

    def _number(self, value: _Value) -> int:
        if value not in self.numbers:
            self.numbers[value] = len(self.values)
            self.values.append(value)
            of_column = value.op == CHOOSE or (value.op == LOAD and not value.bounds[2])
            self.same.append(not of_column and all(self.same[one] for one in value.operands))
            level = self.levels[value.bounds[0]] if value.op == "reduced" else 0
            self.level.append(max([level, *(self.level[one] for one in value.operands)]))
        return self.numbers[value]

    # --- code --------------------------------------------------------------------------------------

    def _phase(self, width: int, results: list[tuple[str, int, int]]) -> Phase:
        """The code of the values that a pass needs; registers are taken again once nothing reads them later."""
        needed: set[int] = set()
        waiting = [value for _, value, _ in results]
        while waiting:
            value = waiting.pop()
            if value not in needed:
                needed.add(value)
                waiting += self.values[value].operands
        computed = [one for one in sorted(needed) if self.values[one].op not in _GIVEN]
        once = [one for one in computed if self.same[one]]
        order = [*once, *(one for one in computed if not self.same[one])]
        last: dict[int, int] = {}
        for place, one in enumerate(order):
            for part in self.values[one].operands:
                # What is computed once is there for all columns.
                last[part] = len(order) if self.same[part] and place >= len(once) else place
        last |= {value: len(order) for _, value, _ in results}
        registers: dict[int, int] = {}
        free: list[int] = []
        code = []
        used = 0
        for place, one in enumerate(order):
            made = self.values[one]
            operands = [self._operand(part, registers) for part in made.operands]
            read = {*made.operands} & registers.keys()
            free += [registers[part] for part in read if last[part] == place]
            if not free:
                free.append(used)
                used += 1
            registers[one] = free.pop()
            a, b, c, d = [*operands, *made.bounds, 0, 0, 0, 0][:4]
            code.append((int(made.op), registers[one], a, b, c, d))
        if used > MOST_REGISTERS:
            raise NotPhases(f"{used} registers in a phase; at most {MOST_REGISTERS}")
        kept = ((kind, self._operand(value, registers), to) for kind, value, to in results)
        return Phase(width, len(once), tuple(code), tuple(kept))

    def _operand(self, number: int, registers: dict[int, int]) -> int:
        value = self.values[number]
        if value.op == "constant":
            return CONSTANT + value.bounds[0]
        if value.op == "reduced":
            return REDUCED + value.bounds[0]
        return registers[number]
