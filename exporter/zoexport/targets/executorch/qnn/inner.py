"""Inner values of a program on the NPU, paired with those of the same program in PyTorch.

The HTP runs a delegate as one call and hides its inner values. Here every floating-point result
becomes an output, so that one lowering and one run in QNN's emulation return them all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter, Node

from zoexport.core import qnn
from zoexport.core.graph import Program, TrainingGraph, Value
from zoexport.core.native import library_path
from zoexport.core.target import InnerValue
from zoexport.ir.capture import quiet
from zoexport.ir.graphs import (
    aten,
    copy_program,
    is_call,
    outputs,
    remove_unused_weights,
    set_outputs,
)
from zoexport.ir.samples import sample_inputs
from zoexport.targets.executorch.program_file import refused
from zoexport.targets.executorch.qnn.exported import export_program
from zoexport.targets.executorch.qnn.form import for_htp
from zoexport.targets.executorch.qnn.lower import to_edge

_MOVES = (
    *(aten.reshape, aten.view, aten.transpose, aten.permute, aten.expand, aten.repeat),
    *(aten.slice, aten.unsqueeze, aten.squeeze, aten.t),
)
"""What computes nothing: its values are those of what it reads."""
_SCALARS = {"epsilon": None, "sign": 1.0}
"""By role, what an input is where a sample's zero would perturb nothing; None for the setting's value."""


def inner_values(graph: TrainingGraph, name: str, soc: str, eps: float) -> list[InnerValue]:
    """Run a whole program in emulation and in PyTorch, and pair what it computes on the way.

    Args:
        graph: of whole programs. name: of one of them. soc: the chip that it is compiled for.
        eps: how far the adapters are perturbed.

    Returns:
        Every floating-point result in the order of computation, then the program's own outputs as it computes them
        when nothing else is read.

    Raises:
        LoweringError: ExecuTorch or QNN refused the program.
        ZoExportError: QNN's libraries cannot be loaded.
    """
    program = for_htp(graph, name)
    inputs = sample_inputs(graph, program)
    for value in program.arguments():
        if value.role in _SCALARS:
            inputs[value.name].fill_(_SCALARS[value.role] or eps)
    read = _reading(program)
    expected = _Recorder(program).values(graph, inputs)
    found = _run(graph, read, soc, inputs)
    alone = _run(graph, program, soc, inputs)
    pairs = [
        InnerValue(node.name, str(node.target), expected[node], found[node.name])
        for node in program.module.graph.nodes
        if node.name in found and node in expected
    ]
    pairs += [
        InnerValue(value, "output", expected[node], alone[value])
        for value, node in outputs(program).items()
    ]
    return pairs


class _Recorder(Interpreter):
    """Runs a program in PyTorch and keeps every tensor."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.module, garbage_collect_values=False)
        self.program = program

    def values(self, graph: TrainingGraph, inputs: Mapping[str, Tensor]) -> dict[Node, Tensor]:
        given = [
            graph.weights[value.name] if value.role == "weight" else inputs[value.name]
            for value in self.program.inputs
        ]
        with torch.no_grad():
            self.run(*given)
        return {node: value for node, value in self.env.items() if isinstance(value, Tensor)}


def _reading(program: Program) -> Program:
    """Return a copy of a program that also returns every floating-point result."""
    copied = copy_program(program, program.name)
    returned = list(zip(copied.outputs, outputs(copied).values(), strict=True))
    known = {node for _, node in returned}
    for node in copied.module.graph.nodes:
        value = node.meta.get("val")
        computed = node.op == "call_function" and not is_call(node, *_MOVES)
        if (
            computed
            and node not in known
            and isinstance(value, Tensor)
            and value.is_floating_point()
        ):
            dtype = str(value.dtype).removeprefix("torch.")
            returned.append((Value(node.name, "inner", dtype, tuple(value.shape)), node))
    set_outputs(copied, returned)
    remove_unused_weights(copied)
    return copied


def _run(
    graph: TrainingGraph, program: Program, soc: str, inputs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return a program's outputs in QNN's emulation."""
    try:
        with qnn.lowering(), quiet():
            exported = {program.name: export_program(program, graph.weights)}
            edge, _ = to_edge(exported, soc, fp16=True)
            buffer = edge.to_executorch().buffer
    except Exception as error:
        raise refused(f"lowering {program.name} to the NPU of {soc}", error) from error
    # Our operators register themselves when the library is loaded.
    ctypes.CDLL(str(library_path()))
    from executorch.runtime import Runtime

    loaded: Any = Runtime.get().load_program(buffer).load_method(program.name)
    results = loaded.execute([inputs[value.name] for value in program.arguments()])
    # The runtime's tensors are views of its memory.
    return {
        value.name: result.clone() for value, result in zip(program.outputs, results, strict=True)
    }
