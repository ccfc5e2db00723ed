"""Row programs in phases, column by column as a GPU's threads run them, against the row programs that they are of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from tests.support.rows import fused, program
from tests.support.splits import arguments, tiny_graph
from tests.support.tiny_models import fixed
from zoexport.ir.graphs import arguments as operands_of
from zoexport.ir.graphs import is_call, zo
from zoexport.ir.row_ops import Op, Read, RowProgram, decode, run_rows
from zoexport.targets.executorch.lower_stages import fused_program
from zoexport.targets.vulkan.row_phases import (
    CHOOSE,
    CONSTANT,
    LOAD,
    MOST_READS,
    MOST_REDUCTIONS,
    REDUCED,
    NotPhases,
    Phase,
    phases_of,
)

ROWS = [getattr(zo, f"rows_{count}") for count in range(1, 7)]
BINARY: dict[int, Callable[..., torch.Tensor]] = {
    Op.ADD: torch.add, Op.SUB: torch.sub, Op.MUL: torch.mul, Op.DIV: torch.div,
    Op.MAX: torch.maximum, Op.MIN: torch.minimum, Op.LT: torch.lt, Op.LE: torch.le,
    Op.GT: torch.gt, Op.GE: torch.ge, Op.EQ: torch.eq, Op.NE: torch.ne,
}  # fmt: skip
UNARY: dict[int, Callable[..., torch.Tensor]] = {
    Op.NEG: torch.neg, Op.EXP: torch.exp, Op.LOG: torch.log, Op.SQRT: torch.sqrt,
    Op.RSQRT: torch.rsqrt, Op.RECIPROCAL: torch.reciprocal, Op.SIGMOID: torch.sigmoid,
    Op.TANH: torch.tanh, Op.ERF: torch.erf, Op.ABS: torch.abs,
}  # fmt: skip


class Machine:
    """Runs the code of phases for all rows, and one column at a time."""

    def __init__(self, made: RowProgram, inputs: Sequence[torch.Tensor]) -> None:
        self.constants = made.constants
        self.rows = math.prod(made.dims)
        self.reads = [
            torch.as_strided(
                value.contiguous(), (*made.dims, read.width), (*read.strides, 1), read.offset
            ).reshape(-1, read.width)
            for value, read in zip(inputs, made.reads, strict=True)
        ]
        self.registers: dict[int, torch.Tensor] = {}
        self.reduced: dict[int, torch.Tensor] = {}
        self.stored: dict[int, torch.Tensor] = {}

    def value(self, operand: int) -> torch.Tensor:
        if operand >= CONSTANT:
            return torch.full((self.rows,), self.constants[operand - CONSTANT])
        return self.reduced[operand - REDUCED] if operand >= REDUCED else self.registers[operand]

    def step(self, line: tuple[int, ...], column: int) -> None:
        op, dst, a, b, c, d = line
        if op == LOAD:
            width = self.reads[a].shape[1]
            place = b + (0 if c else column)
            result = self.reads[a][:, min(max(place, 0), width - 1)]
        elif op == CHOOSE:
            result = self.value(a if c <= column < d else b)
        elif op == Op.SELECT:
            result = torch.where(self.value(a) != 0, self.value(b), self.value(c))
        elif op in UNARY:
            result = UNARY[op](self.value(a))
        else:
            result = BINARY[op](self.value(a), self.value(b)).float()
        self.registers[dst] = result

    def run(self, phase: Phase) -> None:
        self.registers = {}
        columns = []
        for line in phase.code[: phase.once]:
            self.step(line, 0)
        for column in range(phase.width):
            for line in phase.code[phase.once :]:
                self.step(line, column)
            columns.append([self.value(operand) for _, operand, _ in phase.results])
        for number, (kind, _, target) in enumerate(phase.results):
            found = torch.stack([results[number] for results in columns], 1)
            if kind == "store":
                self.stored[target] = found
            else:
                self.reduced[target] = found.sum(1) if kind == "sum" else found.amax(1)


def run_phases(
    made: RowProgram, phases: Sequence[Phase], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The outputs, each (rows, width)."""
    machine = Machine(made, inputs)
    for phase in phases:
        machine.run(phase)
    return [machine.stored[number] for number in range(len(made.outputs))]


def check(made: RowProgram, inputs: Sequence[torch.Tensor]) -> list[Phase]:
    phases = phases_of(made)
    found = run_phases(made, phases, inputs)
    for ours, theirs in zip(found, run_rows(inputs, made.encoded(), made.constants), strict=True):
        torch.testing.assert_close(ours, theirs.reshape(ours.shape), rtol=2e-5, atol=2e-6)
    return phases


@pytest.mark.parametrize("name", ["llama_tied", "gemma2", "gpt_neox", "bloom"])
def test_row_programs_of_models(name: str) -> None:
    graph, _ = tiny_graph(name)
    count = 0
    for made in graph.programs.values():
        if made.length not in (None, 32):
            continue
        lowered = fused_program(made)
        values = dict(zip(lowered.module.graph.nodes, arguments(graph, lowered), strict=False))
        for node in lowered.module.graph.nodes:
            if node.op != "call_function":
                continue
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
            if is_call(node, *ROWS):
                inputs, code, constants = operands_of(node)
                check(decode(code, constants), [values[one] for one in inputs])
                count += 1
    assert count > 20


def test_softmax_is_three_passes() -> None:
    made = fused(program(lambda x: torch.softmax(x, -1), fixed("x", (3, 5))))
    (node,) = (node for node in made.module.graph.nodes if is_call(node, *ROWS))
    _, code, constants = operands_of(node)
    phases = check(decode(code, constants), [fixed("x", (3, 5))])
    assert [[kind for kind, *_ in phase.results] for phase in phases] == [
        ["max"],
        ["sum"],
        ["store"],
    ]
    # The sum's reciprocal is the same in all columns.
    assert [phase.once for phase in phases] == [0, 0, 1]


def test_slices_and_parts_read_other_columns() -> None:
    """y = [x[4:6], -x[:4]] with the third element of y instead of the first one, and that element for itself."""
    x = fixed("x", (7, 6))
    made = RowProgram(
        (7,),
        [Read(6, 0, (6,))],
        [6, 2, 4, 4, 6, 1, 6],
        [6, 5],
        [
            (Op.SLICE, 1, 0, 0, 4),
            (Op.SLICE, 2, 0, 0, 0),
            (Op.NEG, 3, 2, 0, 0),
            (Op.FILL, 4, -1, 0, 0),
            (Op.PUT, 4, 1, 0, 0),
            (Op.PUT, 4, 3, 0, 2),
            (Op.SLICE, 5, 4, 0, 2),
            (Op.FILL, 6, -1, 0, 0),
            (Op.PUT, 6, 4, 0, 0),
            (Op.PUT, 6, 5, 0, 0),
        ],
        [2.5],
    )
    phases = check(made, [x])
    assert [phase.width for phase in phases] == [6, 1]
    (line,) = (line for line in phases[1].code if line[0] == LOAD)
    assert line[2:5] == (0, 0, 1)  # x[0] whatever the column


def test_reductions_of_reductions_follow_one_another() -> None:
    """The variance needs the mean, and a sum that needs neither is made with the mean's."""
    x = fixed("x", (4, 9))
    made = fused(
        program(lambda x: ((x - x.mean(-1, True)).square().sum(-1, True), x.abs().sum(-1, True)), x)
    )
    phases = []
    for node in made.module.graph.nodes:
        if is_call(node, *ROWS):
            _, code, constants = operands_of(node)
            phases.append(check(decode(code, constants), [x]))
    kinds = [[[kind for kind, *_ in phase.results] for phase in found] for found in phases]
    assert kinds == [[["sum", "sum"], ["sum"], ["store", "store"]]]


def test_registers_are_used_again() -> None:
    """A chain of additions, each of which reads one value more, keeps two at a time."""
    count = MOST_READS
    code = [(Op.ADD, count, 0, 1, 0)]
    code += [
        (Op.ADD, count + number, count + number - 1, number + 1, 0)
        for number in range(1, count - 1)
    ]
    last = 2 * count - 2
    reads = [Read(3, 0, (3,))] * count
    made = RowProgram((2,), reads, [3] * (last + 1), [last], code)
    (phase,) = check(made, [fixed(str(number), (2, 3)) for number in range(count)])
    assert max(line[1] for line in phase.code) < count + 1


@pytest.mark.parametrize(
    ("reads", "reductions", "message"),
    [
        (MOST_READS + 1, 0, "33 reads; at most 32"),
        (1, MOST_REDUCTIONS + 1, "17 reductions; at most 16"),
    ],
)
def test_what_the_engine_has_no_room_for(reads: int, reductions: int, message: str) -> None:
    code = [(Op.SUM, reads + number, 0, 0, 0) for number in range(reductions)]
    widths = [2] * reads + [1] * reductions
    made = RowProgram((1,), [Read(2, 0, (2,))] * reads, widths, [0], code)
    with pytest.raises(NotPhases, match=message):
        phases_of(made)


def test_too_many_values_at_once() -> None:
    """Sixty products that are all needed by both of two sums, one in the other order."""
    count = 60
    code = [(Op.MUL, 1 + number, 0, -1 - number, 0) for number in range(count)]
    first, second = 1 + count, 2 * count
    code += [(Op.ADD, first, 1, 2, 0)]
    code += [
        (Op.ADD, first + number, first + number - 1, 2 + number, 0)
        for number in range(1, count - 1)
    ]
    code += [(Op.ADD, second, count, count - 1, 0)]
    code += [
        (Op.ADD, second + number, second + number - 1, count - 1 - number, 0)
        for number in range(1, count - 1)
    ]
    last = second + count - 2
    constants = [float(number + 2) for number in range(count)]
    made = RowProgram(
        (1,), [Read(2, 0, (2,))], [2] * (last + 1), [second - 2, last], code, constants
    )
    with pytest.raises(NotPhases, match="registers in a phase; at most 40"):
        phases_of(made)
