"""Recorded shapes: what each node of a program gives, computed again after its inputs' sizes changed."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Interpreter, Node

from zoexport.core.errors import VerifyError
from zoexport.core.types import Program, Value


def fake_inputs(values: list[Value], mode: FakeTensorMode) -> list[torch.Tensor]:
    """Tensors without values, of the declared dtypes and shapes."""
    with mode:
        return [torch.empty(value.sizes(), dtype=getattr(torch, value.dtype)) for value in values]


def record_shapes(program: Program) -> None:
    """Record what every node of ``program`` gives for the declared inputs.

    Raises:
        VerifyError: an operation does not work at these sizes.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad():
        _Recorder(program).run(*fake_inputs(program.inputs, mode))


class _Recorder(Interpreter):
    def __init__(self, program: Program) -> None:
        super().__init__(program.module)
        self.name = program.name

    def run_node(self, n: Node) -> Any:
        try:
            result = super().run_node(n)
        except (RuntimeError, ValueError, TypeError) as error:
            raise VerifyError(
                f"program {self.name}, {n.format_node()}",
                found=str(error).splitlines()[0],
                expected="an operation that works at the chosen sizes",
                fix="Report the model's architecture and the settings.",
            ) from error
        if n.op != "output":
            n.meta["val"] = result
        return result
