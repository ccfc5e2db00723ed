"""Programs as calls of the Vulkan engine's shaders, over tensors that have no place yet.

A program, after ``targets.executorch.lower_stages.fused_program``, is products, row programs, attention and labels.
Each of these becomes one :class:`Call`; views, and results of several, are tensors that others name. What is read in
another order than it is stored in is copied first, by a row program too, and the few calls that ``fuse_rows`` left as
they were become such programs. Rows of a table are gathered by the engine on the CPU, from the mapped file, so that a
GPU never holds a table that is only looked up in.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import struct
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from zoexport.core.errors import LoweringError
from zoexport.core.graph import Program, Value
from zoexport.ir.graphs import (
    RESHAPES,
    arguments,
    aten,
    described,
    is_call,
    outputs,
    placeholders,
    zo,
)
from zoexport.ir.row_ops import Op, Read, RowProgram, decode
from zoexport.targets.executorch.layouts import COPIES, VIEWS, Leaf, RowMove, place_of_part
from zoexport.targets.executorch.row_expressions import treats_rows_alone
from zoexport.targets.executorch.row_writer import RowWriter
from zoexport.targets.vulkan.row_phases import NotPhases, phases_of

Tensor = tuple[Node, int]
"""A tensor that a call gives, by its node and the number of the result; or an input, by its placeholder and 0."""
_COPY = -1
"""The number of a node's elements in order, where they lie in another in a tensor."""

_MOST_DIMS = 5
_VIEWS = (*VIEWS, aten.select)
_INTEGERS = (zo.linear_int4, zo.linear_int8)
_INPUT_GRADIENTS = (zo.linear_int4_input_gradient, zo.linear_int8_input_gradient)


@dataclasses.dataclass(frozen=True)
class Weight:
    """A matrix that a product reads from a window of weights.

    Attributes:
        kind: "fp32", "int4" or "int8". rows: of the matrix as it is stored.
        values: its input. scales: that of its scales, of integers.
        group: elements of a row that share a scale, of int4.
    """

    kind: str
    rows: int
    values: Value
    scales: Value | None = None
    group: int = 0


@dataclasses.dataclass
class Call:
    """One dispatch of a shader, or several of one kind.

    Attributes:
        op: its name in the file.
        reads, writes: tensors, by the file's key. weights: matrices, by the file's key.
        sizes: all other fields of the call in the file.
    """

    op: str
    reads: Mapping[str, Tensor | list[Tensor] | None]
    writes: Mapping[str, Tensor | list[Tensor]]
    sizes: dict[str, Any]
    weights: dict[str, Weight] = dataclasses.field(default_factory=dict)

    def read(self) -> list[Tensor]:
        """Return all tensors that the call reads, without weights."""
        return _flat(self.reads)

    def written(self) -> list[Tensor]:
        """Return all tensors that the call writes."""
        return _flat(self.writes)


def _flat(named: Any) -> list[Tensor]:
    lists = (value if isinstance(value, list) else [value] for value in named.values())
    return [one for values in lists for one in values if one is not None]


@dataclasses.dataclass(frozen=True)
class Gather:
    """Rows of a table that the engine copies before the calls.

    Attributes:
        table: input, a weight or state tensor, gathered along its first axis. indices: int64 input.
        first: position of the first index to use. count: number of rows.
        to: tensor that receives the rows contiguously.
    """

    table: Value
    indices: Value
    first: int
    count: int
    to: Tensor


@dataclasses.dataclass
class Calls:
    """A program as calls.

    Attributes:
        program: as it was fused.
        gathers, calls: in their order. outputs: tensors, in the program's order.
        words: 32-bit words of every tensor.
        halves: tensors of fp16 (``halves``); the others are float32, or integers.
        exact: tensors whose numbers count, and may be more than fp16 can.
    """

    program: Program
    gathers: list[Gather] = dataclasses.field(default_factory=list)
    calls: list[Call] = dataclasses.field(default_factory=list)
    outputs: list[Tensor] = dataclasses.field(default_factory=list)
    words: dict[Tensor, int] = dataclasses.field(default_factory=dict)
    halves: frozenset[Tensor] = frozenset()
    exact: set[Tensor] = dataclasses.field(default_factory=set)


def calls_of(program: Program) -> Calls:
    """Return the calls of a fused program.

    Raises:
        LoweringError: an operator, or a size, that the engine has no shader for.
    """
    return _Writer(program).run()


class _Writer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.made = Calls(program)
        self.values = {
            node: value
            for value, node in zip(program.inputs, placeholders(program).values(), strict=True)
        }
        self.tensors: dict[Node, Tensor] = {}
        self.views: dict[Node, torch.Tensor] = {}
        """Of every node, a tensor without values: how its elements lie in its tensor, which is dense."""
        self.rules: dict[Any, Callable[[Node], None]] = {
            zo.matmul: self._matmul,
            zo.add_matmul: self._matmul,
            zo.attention: self._attention,
            zo.attention_gradient: self._attention,
            zo.label_logprobs: self._labels,
            zo.label_gradient: self._labels,
            zo.embedding_int4: self._packed_rows,
            aten.embedding: self._rows_of_table,
            aten._to_copy: self._numbers,
            aten.cumsum: self._running_sum,
            aten.slice_scatter: self._part,
            **dict.fromkeys(_INTEGERS, self._linear),
            **dict.fromkeys(_INPUT_GRADIENTS, self._linear),
            **{getattr(zo, f"rows_{count}"): self._row_program for count in range(1, 7)},
        }

    def run(self) -> Calls:
        for node in self.program.module.graph.nodes:
            if node.op == "placeholder":
                self._name(node, node, 0)
            elif node.op == "call_function":
                self._call(node)
        self.made.outputs = [self._tensor(node) for node in outputs(self.program).values()]
        return self.made

    # --- tensors -----------------------------------------------------------------------------------

    def _name(self, node: Node, owner: Node, number: int) -> None:
        """A node whose elements are those of a tensor, in order."""
        self.tensors[node] = owner, number
        value = node.meta["val"]
        self.views[node] = torch.empty(value.shape, device="meta")
        self.made.words.setdefault((owner, number), -(-value.nbytes // 4))

    def _tensor(self, node: Node) -> Tensor:
        """The tensor that has the elements of ``node`` in order: its own, or a copy of that."""
        self._densely(node)
        return self.tensors[node]

    def _densely(self, node: Node) -> None:
        if node not in self.tensors:  # a constant
            self._alone(node)
        view, owner = self.views[node], self.tensors[node]
        words = self.made.words[owner]
        bytes_of_view = view.numel() * node.meta["val"].element_size()
        if view.is_contiguous() and not view.storage_offset() and -(-bytes_of_view // 4) == words:
            return
        if node.meta["val"].dtype != torch.float32 or view.dim() > _MOST_DIMS or not view.numel():
            raise self._refused(node, "values in other order than they are stored in")
        whole_rows = view.dim() > 1 and view.stride(-1) == 1
        dims = tuple(view.shape[:-1] if whole_rows else view.shape) or (1,)
        strides = tuple(view.stride()[: len(dims)]) or (0,)
        width = view.shape[-1] if whole_rows else 1
        program = RowProgram(dims, [Read(width, int(view.storage_offset()), strides)], [width], [0])
        copied = (node, _COPY)
        self.made.words[copied] = view.numel()
        self._rows(node, program, [owner], [copied])
        self.tensors[node] = copied
        self.views[node] = torch.empty(view.shape, device="meta")

    def _optional(self, node: Node | None) -> Tensor | None:
        return None if node is None else self._tensor(node)

    def _result(self, node: Node) -> Tensor:
        self._name(node, node, 0)
        return self.tensors[node]

    def _results(self, node: Node) -> list[Tensor]:
        """Return all results of a call with several results, including unused ones."""
        for number, value in enumerate(node.meta["val"]):
            self.made.words[node, number] = -(-value.nbytes // 4)
        return [(node, number) for number in range(len(node.meta["val"]))]

    def _refused(self, node: Node, found: str) -> LoweringError:
        return LoweringError(
            f"program {self.program.name}, {described(node)}"[:300],
            found=found,
            expected="what the Vulkan engine has a shader for",
            fix="Report the model's architecture, or compile for another target.",
        )

    def _call(self, node: Node) -> None:
        packet = getattr(node.target, "overloadpacket", node.target)
        source: Any = node.args[0] if node.args else None
        if packet is operator.getitem:
            self._name(node, source, node.args[1])  # type: ignore[arg-type]
        elif packet in RESHAPES or (
            packet in COPIES and source.meta["val"].dtype == node.meta["val"].dtype
        ):
            self._view(node, source, lambda view: view.view(node.meta["val"].shape))
        elif packet in _VIEWS:
            operator_of: Any = node.target
            self._view(node, source, lambda view: operator_of(view, *arguments(node)[1:]))
        elif packet in self.rules:
            self.rules[packet](node)
        elif packet is aten.full:
            pass  # made where it is read, as parts that are put into zeros need none
        elif treats_rows_alone(node) and len(node.meta["val"].shape) <= _MOST_DIMS + 1:
            self._alone(node)
        else:
            raise self._refused(node, f"the operator {node.target}")

    def _view(
        self, node: Node, source: Node, viewed: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        try:
            view = viewed(self.views[source])
        except RuntimeError:
            # Strides cannot say it.
            self._densely(source)
            view = viewed(self.views[source])
        self.tensors[node], self.views[node] = self.tensors[source], view

    # --- products ----------------------------------------------------------------------------------

    def _input(self, node: Node) -> Value | None:
        """Return the input that a node is, regrouped at most."""
        while is_call(node, *RESHAPES):
            node = node.args[0]  # type: ignore[assignment]
        return self.values.get(node)

    def _weight(self, node: Node) -> Value | None:
        """Return the input that a matrix is, if it is a weight."""
        value = self._input(node)
        return value if value is not None and value.role == "weight" else None

    def _matmul(self, node: Node) -> None:
        *added, a, b, transpose_a, transpose_b = arguments(node)
        *lead, rows, columns = node.meta["val"].shape
        reads: dict[str, Any] = {"add": self._tensor(added[0]) if added else None, "bias": None}
        weights: dict[str, Weight] = {}
        for key, matrix in (("a", a), ("b", b)):
            weight = self._weight(matrix)
            if weight is not None and not weights:
                weights[key] = Weight("fp32", matrix.meta["val"].shape[-2], weight)
            else:
                reads[key] = self._tensor(matrix)
        sizes = {
            "batch": math.prod(lead),
            "rows": rows,
            "columns": columns,
            "depth": a.meta["val"].shape[-2 if transpose_a else -1],
            "transposed": [bool(transpose_a), bool(transpose_b)],
        }
        self.made.calls.append(Call("product", reads, {"out": self._result(node)}, sizes, weights))

    def _linear(self, node: Node) -> None:
        forward = is_call(node, *_INTEGERS)
        x, codes, scales, *bias = arguments(node)
        is_int4 = is_call(node, zo.linear_int4, zo.linear_int4_input_gradient)
        *lead, depth = x.meta["val"].shape
        group = 2 * codes.meta["val"].shape[1] // scales.meta["val"].shape[1] if is_int4 else 0
        stored = self._weight(codes), self._weight(scales)
        if stored[0] is None or stored[1] is None:
            raise self._refused(node, "a quantized matrix that is no input")
        kind, count = "int4" if is_int4 else "int8", codes.meta["val"].shape[0]
        weight = Weight(kind, count, stored[0], stored[1], group)
        sizes = {
            "batch": 1,
            "rows": math.prod(lead),
            "columns": node.meta["val"].shape[-1],
            "depth": depth,
            "transposed": [False, forward],
        }
        reads = {
            "a": self._tensor(x),
            "add": None,
            "bias": self._optional(bias[0] if bias else None),
        }
        result = {"out": self._result(node)}
        self.made.calls.append(Call("product", reads, result, sizes, {"b": weight}))

    # --- tables ------------------------------------------------------------------------------------

    def _gather(self, node: Node, table: Node, indices: Node, number: int) -> Tensor:
        """Gather rows of ``table`` into the tensor ``number`` of ``node``."""
        (base, _), view = self.tensors[indices], self.views[indices]
        stored = self._input(table)
        if stored is None or base not in self.values or not view.is_contiguous():
            raise self._refused(node, "a lookup of indices that are no input, or in no input")
        count = view.numel()
        bytes_of_row = table.meta["val"][0].nbytes
        to = node, number
        self.made.words[to] = -(-count * bytes_of_row // 4)
        first = int(view.storage_offset())
        self.made.gathers.append(Gather(stored, self.values[base], first, count, to))
        return to

    def _rows_of_table(self, node: Node) -> None:
        """Gather float32 rows as the result of ``node``; ``_numbers`` converts integer rows."""
        table, indices = arguments(node)[:2]
        self._gather(node, table, indices, 0)
        self._name(node, node, 0)

    def _packed_rows(self, node: Node) -> None:
        codes, scales, indices = arguments(node)
        *lead, width = node.meta["val"].shape
        reads: dict[str, Any] = {
            "codes": self._gather(node, codes, indices, 1),
            "scales": self._gather(node, scales, indices, 2),
        }
        group = width // scales.meta["val"].shape[1]
        sizes = {"rows": math.prod(lead), "width": width, "group": group}
        self.made.calls.append(Call("unpack", reads, {"out": self._result(node)}, sizes))

    def _numbers(self, node: Node) -> None:
        (source,) = arguments(node)
        kinds = source.meta["val"].dtype, node.meta["val"].dtype
        if kinds[0] not in (torch.int8, torch.int64) or kinds[1] != torch.float32:
            raise self._refused(node, f"a conversion of {kinds[0]}")
        result = self._result(node)
        is_whole = kinds[0] == torch.int64
        parts = (node, 1) if is_whole else result
        self.made.words[parts] = source.meta["val"].nbytes
        reads: dict[str, Any] = {"codes": self._tensor(source), "scales": None}
        sizes = {"rows": 1, "width": source.meta["val"].nbytes, "group": 0}
        self.made.calls.append(Call("unpack", reads, {"out": parts}, sizes))
        if is_whole:
            self._joined(node, parts, result)

    def _joined(self, node: Node, parts: Tensor, result: Tensor) -> None:
        """Integers of 64 bits from numbers of their bytes, each with a sign: of tokens three bytes count."""
        count = node.meta["val"].numel()
        program = RowProgram((count,), [Read(1, byte, (8,)) for byte in range(3)], [1] * 3)
        program.constants = [0.0, 256.0, 65536.0]
        zero, wraps, *_ = places = [-1, -2, -3]

        def instruct(op: Op, a: int, b: int) -> int:
            program.widths.append(1)
            program.code.append((int(op), len(program.widths) - 1, a, b, 0))
            return len(program.widths) - 1

        total = zero
        for byte, place in enumerate(places):
            negative = instruct(Op.LT, byte, zero)
            value = instruct(Op.ADD, byte, instruct(Op.MUL, negative, wraps))
            total = instruct(Op.ADD, total, instruct(Op.MUL, value, place) if byte else value)
        program.outputs = [total]
        self.made.exact.add(result)
        self._rows(node, program, [parts] * 3, [result])

    def _running_sum(self, node: Node) -> None:
        """Each element with all before it in its row: sums of 2, 4, 8 and more that end there, one after another."""
        source, axis = arguments(node)[:2]
        shape = node.meta["val"].shape
        if axis % len(shape) != len(shape) - 1 or source.meta["val"].dtype != torch.float32:
            raise self._refused(node, "a running sum")
        width, rows = shape[-1], math.prod(shape[:-1])
        below = self._tensor(source)
        steps = [1 << place for place in range((width - 1).bit_length())]
        if not steps:
            self._view(node, source, lambda view: view)
        for number, back in enumerate(steps):
            result = self._result(node) if back == steps[-1] else (node, 1 + number)
            self.made.words[result] = rows * width
            reads = [Read(width, 0, (width,)), Read(width - back, 0, (width,))]
            code = [
                (int(Op.FILL), 2, -1, 0, 0),
                (int(Op.PUT), 2, 1, 0, back),
                (int(Op.ADD), 3, 0, 2, 0),
            ]
            widths = [width, width - back, width, width]
            self._rows(
                node, RowProgram((rows,), reads, widths, [3], code, [0.0]), [below] * 2, [result]
            )
            self.made.exact.add(result)
            below = result

    # --- rows --------------------------------------------------------------------------------------

    def _row_program(self, node: Node) -> None:
        inputs, code, constants = arguments(node)
        program = decode(code, constants)
        several = len(program.outputs) > 1
        results = self._results(node) if several else [self._result(node)]
        self._rows(node, program, [self._tensor(one) for one in inputs], results)

    def _alone(self, node: Node) -> None:
        """A call that treats each row alone, by itself."""

        def read(
            node: Node, moves: tuple[RowMove, ...], *, top: bool
        ) -> Leaf | tuple[Node, tuple[RowMove, ...]]:
            return (node, moves) if top else Leaf(node, (), moves)

        writer = RowWriter(read, [node])
        inputs = [self._tensor(leaf.node) for leaf in writer.leaves()]
        self._rows(node, writer.program, inputs, [self._result(node)])

    def _part(self, node: Node) -> None:
        """A part put to columns of zeros that follow each other; or to every n-th: rows of n, with one each."""
        below, part = arguments(node)[:2]
        axis, begin, _, step = place_of_part(node)
        shape, count = node.meta["val"].shape, part.meta["val"].shape[-1]
        is_zero = is_call(below, aten.full) and not arguments(below)[1]
        columns, width = (shape[-1], count) if step == 1 else (step, 1)
        is_whole = step == 1 or (begin < step and count * step == shape[-1])
        if not is_zero or axis != len(shape) - 1 or not is_whole:
            raise self._refused(node, "a part put into a tensor")
        inputs = [self._tensor(part)]
        code = [(int(Op.FILL), 1, -1, 0, 0), (int(Op.PUT), 1, 0, 0, begin)]
        rows = part.meta["val"].numel() // width
        reads = [Read(width, 0, (width,))]
        program = RowProgram((rows,), reads, [width, columns], [1], code, [0.0])
        self._rows(node, program, inputs, [self._result(node)])

    def _rows(
        self, node: Node, program: RowProgram, inputs: list[Tensor], results: list[Tensor]
    ) -> None:
        try:
            phases = phases_of(program)
        except NotPhases as error:
            raise self._refused(node, f"a row program of {error}") from error
        sizes: dict[str, Any] = {
            "dims": list(program.dims),
            "reads": [[read.width, read.offset, *read.strides] for read in program.reads],
            "constants": [_bits(constant) for constant in program.constants],
            "phases": [
                {
                    "width": phase.width,
                    "once": phase.once,
                    "code": [number for line in phase.code for number in line],
                    "results": phase.results,
                }
                for phase in phases
            ],
        }
        self.made.calls.append(Call("rows", {"inputs": [*inputs]}, {"outputs": [*results]}, sizes))

    # --- attention and labels ----------------------------------------------------------------------

    def _attention(self, node: Node) -> None:
        backward = is_call(node, zo.attention_gradient)
        q, k, v, bias, *others = arguments(node)
        scale, causal, window = others[-3:]
        reads: dict[str, Any] = {
            "q": self._tensor(q),
            "k": self._tensor(k),
            "v": self._tensor(v),
            "bias": self._optional(bias),
        }
        names = ("out", "lse", "gradient") if backward else ()
        reads |= {name: self._tensor(one) for name, one in zip(names, others, strict=False)}
        batches, tokens, heads, depth = q.meta["val"].shape
        _, _, groups, width = v.meta["val"].shape
        sizes = {
            "batches": batches,
            "tokens": tokens,
            "heads": heads,
            "groups": groups,
            "depth": depth,
            "width": width,
            "scale": _bits(scale),
            "causal": bool(causal),
            "window": window,
        }
        results = ("dq", "dk", "dv") if backward else ("out", "lse")
        writes = dict(zip(results, self._results(node), strict=True))
        op = "attention_gradient" if backward else "attention"
        self.made.calls.append(Call(op, reads, {**writes}, sizes))

    def _labels(self, node: Node) -> None:
        logits, tokens, *weights = arguments(node)
        if self._tensor(tokens)[0] not in self.values:
            raise self._refused(node, "labels that are no input")
        *copies, entries, vocabulary = logits.meta["val"].shape
        reads: dict[str, Any] = {
            "logits": self._tensor(logits),
            "tokens": self._tensor(tokens),
            "weights": self._optional(weights[0] if weights else None),
        }
        names = ("logprobs", "is_argmax", "gradient")
        writes = dict(zip(names, self._results(node), strict=False))
        sizes = {"copies": math.prod(copies), "entries": entries, "vocabulary": vocabulary}
        self.made.calls.append(Call("labels", reads, {**writes}, sizes))


def _bits(number: float) -> int:
    """Return a float32 as an integer, as JSON has no infinities."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return int(bits)
