"""fuse_rows: operators that treat each row alone become a few row programs between the products.

Before::

    s = aten.mul(aten.bmm(q, k), 0.125)
    p = aten._softmax(aten.add(s, mask), -1)
    o = aten.bmm(p, v)
    y = aten.linear(aten.reshape(aten.permute(o, ...), ...), W)

After::

    p = zoexport.rows_1([aten.bmm(q, k), mask], <mul, add, max, sub, exp, sum, mul>)
    o = aten.bmm(p, v)
    y = aten.linear(aten.view(zoexport.rows_1([o], <read permuted>)), W)

Stored is only what a product or the caller reads, and what several programs would have to reduce again; all else is
computed at each read: a pass over memory costs more than arithmetic. Left alone: calls
that are no row programs, with what they read stored.
"""

from __future__ import annotations

from operator import getitem

import torch
from torch.fx import Graph, Node

from zoexport.core.graph import Program
from zoexport.core.interpreted import InterpretedGraph
from zoexport.ir.graphs import aten, call, outputs, shape_of, zo
from zoexport.ir.row_ops import MOST_OUTPUTS
from zoexport.targets.executorch.layouts import (
    Leaf,
    RowMove,
    holds_whole,
    is_layout,
    resolved,
    row_move,
)
from zoexport.targets.executorch.row_expressions import treats_rows_alone
from zoexport.targets.executorch.row_writer import RowWriter

_MOST_DIMS = 5
_MOST_TOGETHER = 8 << 20
_MOST_DEPTH = 128
"""Calls in a row that one program computes: a :class:`RowWriter` recurses over them."""
_MOST_REGISTERS = 256
"""Of a row program (``kRowMaxRegisters`` in runtime_ops/kernels/row_program.h)."""
"""Bytes of the results of one program: all of them, and all that it reads, are in memory at once."""


def fuse_rows(program: Program) -> None:
    """Rewrite a program whose recorded shapes are numbers."""
    _Fusion(program).run()


class NotReadable(Exception):
    """Strides cannot say how a value's rows are read, or they are no float32 numbers."""


class _Fusion:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.old = program.module.graph
        self.new = Graph()
        self.done: dict[Node, Node] = {}
        self.plain: set[Node] = set()
        """Calls that stay as they are though they would be row programs: their reads cannot be said by strides."""
        self.roots: dict[Node, set[Node]] = {}
        """Stored results of row programs, and the stored values that each reads."""

    def run(self) -> None:
        while self._find_roots():
            pass
        self._find_groups()
        for node in self.old.nodes:
            if node.op == "placeholder":
                copied = self.new.node_copy(node)
                self.done[node] = copied
        for node in self.old.nodes:
            if node.op == "call_function" and self._is_call_of_its_own(node):
                self._stored(node)
        self.new.output(tuple(map(self._contiguous, outputs(self.program).values())))
        self.new.eliminate_dead_code()
        self.program.module = InterpretedGraph(self.new)

    def _is_call_of_its_own(self, node: Node) -> bool:
        """Return whether a call is emitted as it is: products, and calls without a row program."""
        return node in self.plain or not (is_layout(node) or treats_rows_alone(node))

    # --- which values are stored -------------------------------------------------------------------

    def _find_roots(self) -> bool:
        """Plan every stored value; whether the set of them has grown, so that plans must be made again."""
        before = len(self.roots), len(self.plain)
        for node in self.old.nodes:
            if node.op == "output" or (
                node.op == "call_function" and self._is_call_of_its_own(node) and node.users
            ):
                for arg in node.all_input_nodes:
                    if isinstance(arg.meta.get("val"), torch.Tensor):
                        self._require(arg)
        self._divide_chains()
        for root in list(self.roots):
            try:
                self.roots[root] = {leaf.node for leaf in self.leaves(root)}
            except NotReadable:
                del self.roots[root]
                self.plain.add(root)
        return before != (len(self.roots), len(self.plain))

    def _divide_chains(self) -> None:
        """Store every value that is computed by too many calls in a row."""
        depths: dict[Node, int] = {}
        for node in self.old.nodes:
            if node.op == "call_function" and not self._is_leaf(node):
                depth = 1 + max((depths.get(arg, 0) for arg in node.all_input_nodes), default=0)
                if depth > _MOST_DEPTH:
                    self._root(node)
                depths[node] = 0 if node in self.roots else depth

    def _require(self, node: Node) -> None:
        """Note that a call reads ``node`` whole: the value below its layouts is stored, or a copy in its order."""
        self._root(resolved(node)[0] if holds_whole(node) else node)

    def _root(self, node: Node) -> None:
        if not self._is_leaf(node) and (is_layout(node) or treats_rows_alone(node)):
            self.roots.setdefault(node, set())

    def _is_leaf(self, node: Node) -> bool:
        return node.op == "placeholder" or node in self.roots or self._is_call_of_its_own(node)

    def leaves(self, root: Node) -> list[Leaf]:
        """Return the reads of the row program of ``root``.

        Raises:
            NotReadable: strides cannot say one.
        """
        if len(shape_of(root)) - 1 > _MOST_DIMS or root.meta["val"].dtype != torch.float32:
            raise NotReadable
        writer = RowWriter(self.read, [root])
        found = writer.leaves()
        if not found:  # a constant
            raise NotReadable
        if not writer.fits(_MOST_REGISTERS):
            inner = [
                node for node in writer.nodes() if node is not root and not self._is_leaf(node)
            ]
            if not inner:
                raise NotReadable
            self._root(
                inner[len(inner) // 2]
            )  # stored, so that two programs compute what one cannot
        return found

    def read(
        self, node: Node, moves: tuple[RowMove, ...], *, top: bool
    ) -> Leaf | tuple[Node, tuple[RowMove, ...]]:
        """Return how a row program obtains a value: a stored leaf, or a node with row moves."""
        if not top and self._is_leaf(node):
            return self._leaf(Leaf(node, (), moves))
        if not is_layout(node):
            if not top and _is_shared_reduction(node):
                self._root(node)
                return self._leaf(Leaf(node, (), moves))
            return node, moves
        base, layouts = resolved(node)
        if self._is_leaf(base) and base is not node:
            return self._leaf(Leaf(base, tuple(layouts), moves))
        chain = [row_move(layout) for layout in layouts]
        if treats_rows_alone(base) and None not in chain:
            return self.read(base, (*(move for move in chain if move), *moves), top=False)
        if len(layouts) == 1 and treats_rows_alone(node) and treats_rows_alone(base):
            return node, moves
        self._root(base)
        if not self._is_leaf(base):
            raise NotReadable
        return self._leaf(Leaf(base, tuple(layouts), moves))

    @staticmethod
    def _leaf(leaf: Leaf) -> Leaf:
        try:
            view = leaf.view()
        except (RuntimeError, IndexError) as error:
            raise NotReadable from error
        if leaf.node.meta["val"].dtype != torch.float32:
            raise NotReadable
        if view.shape[-1] > 1 and view.stride(-1) not in (0, 1):
            raise NotReadable
        return leaf

    # --- which are computed together ---------------------------------------------------------------

    def _find_groups(self) -> None:
        levels: dict[Node, int] = {}
        groups: dict[tuple[int, tuple[int, ...]], list[list[Node]]] = {}
        self.group: dict[Node, list[Node]] = {}

        def level(node: Node) -> int:
            if node not in levels:
                reads = self.roots[node] if node in self.roots else self._operands(node)
                levels[node] = 1 + max((level(read) for read in reads), default=0)
            return levels[node]

        for root in self.roots:
            same = groups.setdefault((level(root), shape_of(root)[:-1]), [])
            for group in same:
                if len(group) < MOST_OUTPUTS and self._belongs(root, group):
                    group.append(root)
                    self.group[root] = group
                    break
            else:
                same.append([root])
                self.group[root] = same[-1]

    def _belongs(self, root: Node, group: list[Node]) -> bool:
        """Return whether to compute a result with others: they share reads and are small."""
        together = sum(node.meta["val"].nbytes for node in (root, *group))
        shared = any(self.roots[root] & self.roots[other] for other in group)
        return (
            shared
            and together <= _MOST_TOGETHER
            and RowWriter(self.read, [*group, root]).fits(_MOST_REGISTERS)
        )

    def _operands(self, node: Node) -> list[Node]:
        """Return the stored values that a call of its own reads."""
        return [
            resolved(arg)[0] if is_layout(arg) and holds_whole(arg) else arg
            for arg in node.all_input_nodes
        ]

    # --- writing -----------------------------------------------------------------------------------

    def _stored(self, node: Node) -> Node:
        """Return the new node that holds ``node`` in its own shape, contiguous."""
        if node not in self.done:
            if node in self.roots:
                self._write(self.group[node])
            else:
                made = self.new.node_copy(node, self._contiguous)
                value = made.meta.get("val")
                if isinstance(value, torch.Tensor) and not value.is_contiguous():
                    made = call(
                        self.new, aten.clone.default, made, memory_format=torch.contiguous_format
                    )
                self.done[node] = made
        return self.done[node]

    def _contiguous(self, node: Node) -> Node:
        if node in self.done or node in self.roots or not is_layout(node) or node in self.plain:
            return self._stored(node)
        base, _ = resolved(node)
        stored = self._stored(base)
        view = call(self.new, aten.view.default, stored, list(shape_of(node)))
        self.done[node] = view
        return view

    def _write(self, group: list[Node]) -> None:
        writer = RowWriter(self.read, group)
        leaves = writer.leaves()
        inputs = [self._stored(leaf.node) for leaf in leaves]
        code, constants = writer.encoded()
        operator = getattr(zo, f"rows_{len(group)}").default
        made = call(self.new, operator, inputs, code, constants)
        for number, root in enumerate(group):
            result = made if len(group) == 1 else call(self.new, getitem, made, number)
            if len(shape_of(root)) == 1:  # the iteration space has a dimension at least
                result = call(self.new, aten.view.default, result, list(shape_of(root)))
            self.done[root] = result


def _is_shared_reduction(node: Node) -> bool:
    """Return whether several nodes read a reduced value, which is expensive to recompute."""
    return shape_of(node)[-1] == 1 and len(node.users) > 1
