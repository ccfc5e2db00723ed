"""Programs written as Python functions, for the passes that make products and row programs of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support.graphs import operators
from zoexport.core.graph import Program, Value
from zoexport.core.interpreted import InterpretedGraph
from zoexport.ir.graphs import copy_program
from zoexport.ir.row_ops import RowProgram, decode
from zoexport.ir.shapes import record_shapes
from zoexport.targets.executorch.fuse_rows import fuse_rows
from zoexport.targets.executorch.products import write_products
from zoexport.targets.executorch.row_rules import decompose


def program(function: Callable[..., Any], *inputs: torch.Tensor) -> Program:
    """The calls of ``function``, which returns a tensor or several, as a program with inputs in0, in1, ..."""

    def several(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = function(*values)
        return found if isinstance(found, tuple) else (found,)

    with torch.no_grad():
        traced = make_fx(several)(*inputs)
        results = several(*inputs)
    made = Program(
        "test",
        InterpretedGraph(traced.graph),
        [_value(f"in{number}", value) for number, value in enumerate(inputs)],
        [_value(f"out{number}", value) for number, value in enumerate(results)],
    )
    record_shapes(made)
    return made


def _value(name: str, tensor: torch.Tensor) -> Value:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Value(name, "activation", dtype, tuple(tensor.shape))


def last(made: Program) -> Node:
    """The node that a program returns."""
    (returned,) = next(node for node in made.module.graph.nodes if node.op == "output").args
    assert isinstance(returned, tuple) and isinstance(returned[-1], Node)
    return returned[-1]


def fused(made: Program) -> Program:
    """A copy, lowered to products and row programs."""
    copy = copy_program(made, made.name)
    decompose(copy)
    write_products(copy)
    fuse_rows(copy)
    record_shapes(copy)
    return copy


def kernels(made: Program) -> Counter[str]:
    """The operators called that do something, by name without namespace and overload."""
    found: Counter[str] = Counter()
    for name, count in operators(made).items():
        short = name.split(".")[1] if "." in name and "<" not in name else name
        if short != "view" and not short.startswith("<"):
            found[short] += count
    return found


def row_programs(made: Program) -> list[RowProgram]:
    """The row programs called, in order."""
    return [
        decode(node.args[1], node.args[2])
        for node in made.module.graph.nodes
        if node.op == "call_function" and "rows_" in str(node.target)
    ]


def reads(made: Program) -> list[list[Node]]:
    """What each row program reads."""
    return [
        list(node.args[0])
        for node in made.module.graph.nodes
        if node.op == "call_function" and "rows_" in str(node.target)
    ]
