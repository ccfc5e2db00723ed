"""Programs as MLX functions: traced operator by operator, and written to .mlxfn files.

Every input is named, weights and slots too, so that one function serves all layers of one shape and its file holds no
weight. A file has a trace for each length of a family.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import torch
from torch.fx import Node

from zoexport.core.errors import LoweringError, first_line
from zoexport.core.graph import Program, Value
from zoexport.ir.graphs import output_node, placeholders
from zoexport.targets.mlx.operators import DTYPES
from zoexport.targets.mlx.packing import Packed, dtype_name, pack
from zoexport.targets.mlx.products import of_packed, rules
from zoexport.targets.rules import apply_rule, packet_of

_OF_PACKED = of_packed()
_RULES = {**rules(), **_OF_PACKED}


class Function:
    """A program as a function of named arrays.

    Args:
        program: with numbers for sizes.

    Attributes:
        inputs: the program's, with quantized weights as they are stored (``packing``).
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes = placeholders(program)
        self.quantized = _quantized(program)
        self.inputs = [stored for value in program.inputs for stored in self._stored(value)]

    def __call__(self, **arrays: mx.array) -> list[mx.array]:
        """Return the outputs in the program's order.

        Raises:
            LoweringError: an operator without a rule, or with arguments that its rule does not take.
        """
        values: dict[Node, Any] = {
            node: self._input(name, arrays) for name, node in self.nodes.items()
        }
        for node in self.program.module.graph.nodes:
            if node.op == "call_function":
                values[node] = self._call(node, values)
        returned: Any = output_node(self.program.module).args[0]
        return [
            mx.reshape(values[node].astype(DTYPES[getattr(torch, value.dtype)]), value.sizes())
            for node, value in zip(returned, self.program.outputs, strict=True)
        ]

    def examples(self) -> dict[str, mx.array]:
        """Arrays of the inputs' types and shapes, which are never computed."""
        return {
            value.name: mx.zeros(value.sizes(), DTYPES[getattr(torch, value.dtype)])
            for value in self.inputs
        }

    def _stored(self, value: Value) -> list[Value]:
        weight, _, part = value.name.rpartition(".")
        if value.dtype == "bool":
            # A session has no tensors of booleans.
            return [dataclasses.replace(value, dtype="uint8")]
        if weight not in self.quantized or part not in ("codes", "scales"):
            return [value]
        if part == "scales":
            return []
        return [
            Value(f"{weight}.{name}", "weight", dtype_name(tensor), tuple(tensor.shape))
            for name, tensor in self.quantized[weight].items()
        ]

    def _input(self, name: str, arrays: dict[str, mx.array]) -> Any:
        """Return the value of the input ``name``; quantized values include their scales."""
        weight, _, part = name.rpartition(".")
        if weight not in self.quantized or part != "codes":
            is_bool = self.nodes[name].meta["val"].dtype == torch.bool
            return arrays[name].astype(mx.bool_) if is_bool else arrays[name]
        parts = {name: arrays[f"{weight}.{name}"] for name in self.quantized[weight]}
        return Packed(parts["codes"], parts["scales"], parts.get("biases"))

    def _call(self, node: Node, values: dict[Node, Any]) -> Any:
        reads_packed = packet_of(node) in _OF_PACKED

        def value_of(argument: Node) -> Any:
            value = values[argument]
            return value.numbers() if isinstance(value, Packed) and not reads_packed else value

        return apply_rule(self.program, node, _RULES, value_of, "MLX")


def _quantized(program: Program) -> dict[str, dict[str, torch.Tensor]]:
    """By name, what is stored of each weight that a program reads as codes and scales; tensors without values."""
    inputs = {
        value.name: torch.empty(value.sizes(), dtype=getattr(torch, value.dtype), device="meta")
        for value in program.weights()
    }
    names = [name.removesuffix(".codes") for name in inputs if name.endswith(".codes")]
    return {name: pack(inputs[f"{name}.codes"], inputs[f"{name}.scales"]) for name in names}


def write_functions(path: Path, functions: Sequence[Function]) -> None:
    """Write functions of the same inputs but for their shapes to one file.

    Raises:
        LoweringError: a program has no form in MLX, or MLX cannot write it.
    """
    # Each call traces the next one: MLX takes one Python function for a file.
    upcoming = iter(functions)

    def trace(**arrays: mx.array) -> list[mx.array]:
        return next(upcoming)(**arrays)

    try:
        with mx.exporter(str(path), trace) as exporter:
            for function in functions:
                exporter(**function.examples())
    except (RuntimeError, ValueError) as error:
        raise LoweringError(
            f"program {functions[0].program.name}",
            found=f"MLX's {first_line(error)}",
            expected="a function that MLX can write",
            fix="Report the model's architecture, or compile for another target.",
        ) from error
