"""Decompositions of a graph's calls; identical calls are traced once.

Tracing a whole program would also trace the calls that stay unchanged, which are most, and would
trace identical calls of layers and lengths again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from types import MappingProxyType
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch.func import functionalize
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from zoexport.ir.fakes import Known, static_mode
from zoexport.ir.graphs import writes

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_MOST_PARTS = 1 << 11


@functools.cache
def core_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """torch's decompositions to core operators; it goes through all operators that there are, each time it is asked."""
    return MappingProxyType({**core_aten_decompositions()})


def without_writes(traced: GraphModule, inputs: Sequence[torch.Tensor]) -> GraphModule:
    """Return a traced function without in-place operators, which some decompositions and gradients of PyTorch use."""
    if not any(map(writes, traced.graph.nodes)):
        return traced
    made: GraphModule = make_fx(functionalize(traced))(*inputs)
    return made


class Decompositions:
    """Decomposition table with a cache of the calls that it has decomposed.

    Args:
        table: maps operators to functions, as in ``make_fx``.
    """

    def __init__(self, table: Mapping[Any, Callable[..., Any]]) -> None:
        self._table = dict(table)
        self._parts = Known(_MOST_PARTS)

    def apply(self, graph: Graph) -> Graph:
        """Return a graph without calls of the table's operators and of composite operators.

        Args:
            graph: has numbers as recorded shapes and no in-place operators (``ir.verify``).
        """
        made = Graph()
        values: dict[Node, Any] = {}
        for node in graph.nodes:
            if node.op == "output":
                made.output(map_arg(node.args[0], values.__getitem__))
            elif node.op == "call_function" and self._concerns(node.target):
                given: list[Node] = []
                map_arg((node.args, node.kwargs), given.append)
                part = self._part(node)
                inputs = [one for one in part.nodes if one.op == "placeholder"]
                read = {one: values[arg] for one, arg in zip(inputs, given, strict=True)}
                values[node] = made.graph_copy(part, read)
            elif node.target is getitem and not isinstance(values[node.args[0]], Node):
                values[node] = values[node.args[0]][node.args[1]]
            else:
                values[node] = made.node_copy(node, values.__getitem__)
        return made

    def _concerns(self, operator: Any) -> bool:
        if not isinstance(operator, torch._ops.OpOverload):
            return False
        return operator in self._table or operator.has_kernel_for_dispatch_key(_COMPOSITE)

    def _part(self, node: Node) -> Graph:
        """Return the replacement of a call: a graph with its tensors as placeholders, in order."""
        args, kwargs = map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
        part: Graph = self._parts.get(node.target, args, kwargs, lambda: self._traced(node))
        return part

    def _traced(self, node: Node) -> Graph:
        target: Any = node.target

        def called(*tensors: torch.Tensor) -> Any:
            left = iter(tensors)
            args, kwargs = map_arg((node.args, node.kwargs), lambda arg: next(left))
            return target(*args, **kwargs)

        mode = static_mode()
        tensors: list[torch.Tensor] = []
        with mode, torch.no_grad():
            # New tensors: the same recorded tensor may be passed twice.
            map_arg((node.args, node.kwargs), lambda arg: tensors.append(_another(arg.meta["val"])))
            traced = make_fx(functionalize(called), decomposition_table=self._table)(*tensors)
            return without_writes(traced, tensors).graph


def _another(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
