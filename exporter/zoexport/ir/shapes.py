"""Recorded shapes: what each node of a program gives, computed again after its inputs' sizes changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node

from zoexport.core.errors import VerifyError
from zoexport.core.graph import Program, Value
from zoexport.core.interpreted import InterpretedGraph
from zoexport.ir.fakes import fake_result, static_mode
from zoexport.ir.graphs import described


def fake_inputs(values: list[Value], mode: FakeTensorMode) -> list[torch.Tensor]:
    """Tensors without values, of the declared dtypes and shapes."""
    with mode:
        return [torch.empty(value.sizes(), dtype=getattr(torch, value.dtype)) for value in values]


def record_shapes(program: Program) -> None:
    """Record what every node of ``program`` gives for the declared inputs.

    Raises:
        VerifyError: an operation does not work at these sizes.
    """
    mode = static_mode()
    record(program.module, program.name, fake_inputs(program.inputs, mode), mode)


def record(
    module: InterpretedGraph | GraphModule,
    name: str,
    inputs: Sequence[torch.Tensor],
    mode: FakeTensorMode,
) -> None:
    """Record what every node of a module gives for ``inputs``, which are of ``mode``.

    Args:
        name: of the program, for the message.

    Raises:
        VerifyError: an operation does not work at these sizes.
    """
    _Recorder(module, name, mode).run(*inputs)


class _Recorder(Interpreter):
    def __init__(
        self, module: InterpretedGraph | GraphModule, name: str, mode: FakeTensorMode
    ) -> None:
        super().__init__(module)
        self.name = name
        self.mode = mode

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return fake_result(self.mode, target, args, kwargs)

    def run_node(self, n: Node) -> Any:
        try:
            try:
                result = super().run_node(n)
            except (RuntimeError, ValueError):
                if n.target is not torch.ops.aten.view.default:
                    raise
                # An input that a pass replaced may be permuted otherwise: it must be copied.
                n.target = torch.ops.aten.reshape.default
                result = super().run_node(n)
        except (RuntimeError, ValueError, TypeError) as error:
            raise VerifyError(
                f"program {self.name}, {described(n)}",
                found=str(error).splitlines()[0],
                expected="an operation that works at the chosen sizes",
                fix="Report the model's architecture and the settings.",
            ) from error
        if n.op != "output":
            n.meta["val"] = result
        return result
