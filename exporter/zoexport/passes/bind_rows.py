"""bind_rows: fix the number of rows, and compute each value for as few of them as it depends on.

Before, with the symbolic batch ``s``::

    m = mask(aten.arange(s))             # depends on no input: once
    k = aten.linear(norm(x), W_k)        # depends on tokens:   once for every row
    q = aten.linear(x', W_q)             # depends on a copy:   once for every row of every copy
    a = aten.matmul(q, k.T) + m

After, for R rows and C copies: ``m`` has 1 row, ``k`` R, ``q`` C*R; where a computation of more rows reads a value of
fewer, ``aten.repeat`` stands between, or nothing where the reader broadcasts a single row anyway.
P-RGE section 3.1: all queries and both signs share the batch, copy after copy along the first dimension.

The numbers of the rows are those of one row, as a causal mask is the same for all; of an encoder they are R.

Left alone: values without the batch in their shape (weights, the perturbed adapters). Refused: a value with the batch
in another dimension than the first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from zoexport.core.errors import VerifyError
from zoexport.core.graph import Dim, Program, TrainingGraph, Value
from zoexport.core.interpreted import InterpretedGraph
from zoexport.ir.fakes import fake_result, static_mode
from zoexport.ir.graphs import aten, described, is_call, placeholders
from zoexport.passes.dual_forward import VARIES

_BROADCASTS = (aten.add, aten.sub, aten.mul, aten.div, aten.where, aten.masked_fill, aten.maximum)
_REPORT = "This model mixes rows in a way that zoexport does not know; report its architecture."


def bind_rows(graph: TrainingGraph, rows: int) -> TrainingGraph:
    """Rewrite every program for ``rows`` sequences in one call."""
    for program in graph.programs.values():
        copies = graph.copies if program.name == "train" else 1
        _Binder(program, rows, copies, numbered=graph.pad_token is not None).run()
    graph.rows = rows
    return graph


class _Binder:
    def __init__(self, program: Program, rows: int, copies: int, *, numbered: bool) -> None:
        self.program = program
        self.rows = rows
        self.copies = copies
        self.numbered = numbered
        self.old = program.module.graph
        self.new = Graph()
        self.mode = static_mode()
        tokens = placeholders(program)["tokens"]
        self.symbol = tokens.meta["val"].shape[0].node.expr
        self.span = self._spans(tokens)
        self.copied: dict[Node, Node] = {}
        self.repeated: dict[tuple[Node, int], Node] = {}

    def run(self) -> None:
        for node in self.old.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "output":
                self.new.output(torch.fx.node.map_arg(node.args[0], lambda arg: self.copied[arg]))
            elif not self._is_size(node):
                self._call(node)
        self.new.eliminate_dead_code()
        self.program.module = InterpretedGraph(self.new)
        self.program.inputs = [self._bound(value) for value in self.program.inputs]

    def _spans(self, tokens: Node) -> dict[Node, int]:
        """Return the number of rows that each value has: 1, rows, or rows of all copies."""
        varies: set[Node] = set()
        reads: set[Node] = {tokens}
        for node in self.old.nodes:
            inputs = [arg for arg in node.all_input_nodes if not self._is_size(arg)]
            if node.meta.get(VARIES) or varies.intersection(inputs):
                varies.add(node)
            elif reads.intersection(inputs) or (self.numbered and self._numbers_rows(node)):
                reads.add(node)
        return {
            node: self.rows * self.copies if node in varies else self.rows if node in reads else 1
            for node in self.old.nodes
        }

    def _numbers_rows(self, node: Node) -> bool:
        """Return whether a call numbers the rows, as encoder masks do to index tokens by row."""
        return is_call(node, aten.arange) and any(map(self._is_size, node.all_input_nodes))

    @staticmethod
    def _is_size(node: Node) -> bool:
        return isinstance(node.meta.get("val"), int | float | torch.SymInt | torch.SymFloat)

    def _size(self, node: Node, span: int) -> Any:
        value = node.meta["val"]
        if isinstance(value, torch.SymInt):
            return int(value.node.expr.subs({self.symbol: span}))
        return value

    def _placeholder(self, node: Node) -> None:
        copied = self.new.node_copy(node, lambda arg: arg)
        shape = [self._concrete(size, self.rows) for size in node.meta["val"].shape]
        with self.mode:
            copied.meta["val"] = torch.empty(shape, dtype=node.meta["val"].dtype)
        self.copied[node] = copied

    def _concrete(self, size: Any, span: int) -> int:
        return (
            int(size.node.expr.subs({self.symbol: span}))
            if isinstance(size, torch.SymInt)
            else size
        )

    def _call(self, node: Node) -> None:
        span = self.span[node]

        def argument(arg: Node) -> Any:
            return self._size(arg, span) if self._is_size(arg) else self._at_span(arg, node)

        copied = self.new.node_copy(node, argument)
        copied.meta = {
            key: node.meta[key] for key in ("nn_module_stack", "stack_trace") if key in node.meta
        }
        target: Any = node.target
        values = torch.fx.node.map_arg((copied.args, copied.kwargs), lambda arg: arg.meta["val"])
        try:
            copied.meta["val"] = fake_result(self.mode, target, *values)
        except (RuntimeError, ValueError, TypeError) as error:
            raise VerifyError(
                f"[bind_rows] {described(node)}",
                found=str(error).splitlines()[0],
                expected=f"an operation that works on {span} rows",
                fix=_REPORT,
            ) from error
        self.copied[node] = copied

    def _at_span(self, arg: Node, reader: Node) -> Node:
        copied = self.copied[arg]
        have, want = self.span[arg], self.span[reader]
        value = arg.meta.get("val")
        if have == want or not isinstance(value, torch.Tensor):
            return copied
        batched = [
            dim
            for dim, size in enumerate(value.shape)
            if isinstance(size, torch.SymInt) and self.symbol in size.node.expr.free_symbols
        ]
        if not batched:
            return copied
        # One row broadcasts, unless its dimension holds the row's tokens too.
        one = all(self._concrete(value.shape[dim], 1) == 1 for dim in batched)
        if have == 1 and one and is_call(reader, *_BROADCASTS):
            return copied
        if batched != [0]:
            raise VerifyError(
                f"[bind_rows] {described(arg)}",
                found=f"the batch in dimension {batched[-1]}",
                expected="the batch in the first dimension",
                fix=_REPORT,
            )
        return self._repeat(copied, want // have)

    def _repeat(self, node: Node, times: int) -> Node:
        if times == 1:
            return node
        key = (node, times)
        if key not in self.repeated:
            factors = [times] + [1] * (node.meta["val"].dim() - 1)
            repeated = self.new.call_function(aten.repeat.default, (node, factors))
            with self.mode:
                repeated.meta["val"] = node.meta["val"].repeat(factors)
            self.repeated[key] = repeated
        return self.repeated[key]

    def _bound(self, value: Value) -> Value:
        shape = tuple(
            self.rows if isinstance(size, Dim) and size.name == "rows" else size
            for size in value.shape
        )
        return Value(value.name, value.role, value.dtype, shape)
