"""Writing row programs: from the calls of a graph to instructions over registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch.fx import Node

from zoexport.ir.graphs import shape_of
from zoexport.ir.row_ops import Op, Read, RowProgram
from zoexport.targets.executorch.layouts import Leaf, RowMove
from zoexport.targets.executorch.row_expressions import Emitter


class Reader(Protocol):
    """Says how a value is come by."""

    def __call__(
        self, node: Node, moves: tuple[RowMove, ...], *, top: bool
    ) -> Leaf | tuple[Node, tuple[RowMove, ...]]:
        """Return a read of a stored value, or a call to compute, with the moves of its rows.

        Args:
            moves: of the rows of ``node``. top: whether it is the result itself, which is always computed.
        """


class RowWriter:
    """The row program that computes ``roots``, which have the same leading dimensions.

    Args:
        reader: says how each value is come by.
        roots: the results.
    """

    def __init__(self, reader: Reader, roots: Sequence[Node]) -> None:
        self.reader = reader
        dims = shape_of(roots[0])[:-1] or (1,)
        self.program = RowProgram(tuple(dims))
        self.reads: dict[Any, int] = {}
        self.found: list[Leaf] = []
        self.computed: dict[Any, int] = {}
        self.lines: list[tuple[int, int, int, int, int]] = []
        self.scratch: list[int] = []
        results = [self._value(root, (), top=True) for root in roots]
        self._number(results, [shape_of(root)[-1] for root in roots])

    def leaves(self) -> list[Leaf]:
        """Return the reads, in the order of the program's inputs."""
        return self.found

    def nodes(self) -> list[Node]:
        """Return the nodes that the program computes or reads, operands first."""
        return list(dict.fromkeys(node for node, _ in self.computed))

    def fits(self, registers: int) -> bool:
        """Return whether the program needs at most that many registers."""
        return len(self.program.widths) <= registers

    def encoded(self) -> tuple[list[int], list[float]]:
        """Return the code and the constants."""
        return self.program.encoded(), self.program.constants

    def _value(self, node: Node, moves: tuple[RowMove, ...], *, top: bool = False) -> int:
        key = (node, moves)
        if key not in self.computed:
            found = self.reader(node, moves, top=top)
            if isinstance(found, tuple):
                inner, moved = found
                self.computed[key] = self._compute(inner, moved)
            else:
                self.computed[key] = self._read(found)
        return self.computed[key]

    def _compute(self, node: Node, moves: tuple[RowMove, ...]) -> int:
        lead = shape_of(node)[:-1]

        def operand(argument: Node) -> int:
            same = shape_of(argument)[:-1] == lead
            spread = () if same else (RowMove("expand", lead),)
            return self._value(argument, (*spread, *moves))

        return Emitter(self._instruct, operand, self._constant, self._assemble, self._width).emit(
            node
        )

    def _read(self, leaf: Leaf) -> int:
        view = leaf.view()
        width = 1 if view.stride(-1) == 0 else view.shape[-1]
        strides = tuple(view.stride()[:-1]) if view.dim() > 1 else (0,)
        read = Read(width, int(view.storage_offset()), strides)
        key = (leaf.node, read)
        if key not in self.reads:
            self.reads[key] = len(self.found)
            self.found.append(leaf)
            self.program.reads.append(read)
        # Registers of reads are numbered from 0, others after them once all reads are known.
        return self.reads[key]

    def _constant(self, number: float) -> int:
        constants = self.program.constants
        if number not in constants:
            constants.append(number)
        return -1 - constants.index(number)

    def _width(self, value: int) -> int:
        if value < 0:
            return 1
        if value < _SCRATCH:
            return self.program.reads[value].width
        return self.scratch[value - _SCRATCH]

    def _instruct(self, op: Op, width: int, a: int, b: int = 0, c: int = 0) -> int:
        operands = (
            (a, b, c) if op == Op.SELECT else (a, b) if op < Op.NEG or op in _COMPARISONS else (a,)
        )
        width = max(self._width(value) for value in operands) if op < Op.SUM else width
        self.scratch.append(width)
        target = _SCRATCH + len(self.scratch) - 1
        self.lines.append((int(op), target, a, b, c))
        return target

    def _assemble(self, width: int, elsewhere: int, parts: list[tuple[int, int]]) -> int:
        target = self._instruct(Op.FILL, width, elsewhere)
        self.lines += [(int(Op.PUT), target, register, 0, offset) for offset, register in parts]
        return target

    def _number(self, results: list[int], widths: list[int]) -> None:
        """Give registers their final numbers; a result that is narrower than its value is filled from it."""
        final = []
        for result, width in zip(results, widths, strict=True):
            if self._width(result) != width or result < 0:
                result = self._instruct(Op.FILL, width, result)
            final.append(result)
        count = len(self.found)

        def numbered(value: int) -> int:
            return value if value < _SCRATCH else value - _SCRATCH + count

        self.program.widths = [read.width for read in self.program.reads] + self.scratch
        self.program.outputs = [numbered(value) for value in final]
        self.program.code = [
            (
                op,
                numbered(dst),
                numbered(a),
                numbered(b),
                c if op in (Op.SLICE, Op.PUT) else numbered(c),
            )
            for op, dst, a, b, c in self.lines
        ]


_SCRATCH = 1 << 20
"""Scratch registers are numbered from here until all reads are known."""
_COMPARISONS = (Op.LT, Op.LE, Op.GT, Op.GE, Op.EQ, Op.NE)
