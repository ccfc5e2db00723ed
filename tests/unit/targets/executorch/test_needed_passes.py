"""Lowering leaves out ExecuTorch's passes only where they have nothing to find."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import default_decompositions
from torch.export.graph_signature import (
    ExportGraphSignature,
)

from zoexport.targets.executorch.needed_passes import (
    delegates_as_recorded,
    has_decompositions,
    needed_passes_only,
    pass_name,
)

ALWAYS = {"XNNPACKRemoveCloneOpsTransform"}


class _Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _passes(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[set[str], set[str]]:
    """The names of the passes that would run over a program and over a delegate of it."""
    from executorch.backends.xnnpack import xnnpack_preprocess
    from executorch.exir import EdgeCompileConfig
    from executorch.exir.program import _program

    program = torch.export.export(_Function(function), (x,))
    with needed_passes_only([program]):
        edge, _ = _program._get_aten_to_edge_passes(EdgeCompileConfig())
        manager = xnnpack_preprocess.XNNPACKPassManager(program)
    return set(map(pass_name, edge)), {step.__name__ for step in manager.passes}


def test_idle_passes_are_left_out() -> None:
    edge, delegate = _passes(lambda x: x * x + 1.0, torch.ones(2, 3))
    assert delegate == ALWAYS
    assert "ScalarToTensorPass" in edge
    assert not edge & {
        "NormalizeTransposePass",
        "ReplaceBrokenOpsWithFunctionalOpsPass",
        "SymToTensorPass",
        "RemoveMixedTypeOperators",
    }


@pytest.mark.parametrize(
    ("function", "needed"),
    [
        (torch.relu, "FuseActivationPass"),
        (lambda x: torch.cat([x] * 6), "DecomposeConcatenate"),
        (lambda x: x.mm(torch.ones(3, 2)), "ConvertToLinearPass"),
        (lambda x: x.t(), "NormalizeTransposePass"),
        (lambda x: x + torch.ones(3), "ConstPropPass"),
        (
            lambda x: torch.ops.aten._to_copy(x, dtype=torch.float64),
            "RemoveRedundantCopyPass",
        ),
        (lambda x: x + torch.arange(3), "RemoveMixedTypeOperators"),
        (lambda x: x * 2, "RemoveMixedTypeOperators"),
    ],
)
def test_needed_passes_run(function: Callable[[Tensor], Tensor], needed: str) -> None:
    edge, delegate = _passes(function, torch.ones(2, 3))
    assert needed in edge | delegate


def test_all_run_where_there_is_a_convolution() -> None:
    edge, delegate = _passes(
        lambda x: nn.functional.conv1d(x, torch.ones(1, 1, 2)), torch.ones(1, 1, 4)
    )
    assert {"NormalizeTransposePass", "RemoveMixedTypeOperators"} <= edge
    assert "Conv1dUnsqueezePass" in delegate and delegate >= ALWAYS


@pytest.mark.parametrize(
    ("function", "decomposed"),
    [
        (lambda x: x * x.sum(-1, keepdim=True), False),
        (lambda x: torch.nn.functional.softplus(x), True),
        (lambda x: x.view(3, 2).expand(4, 3, 2), False),
        (lambda x: torch.ops.aten.reshape(x, (3, 2)), False),
        (lambda x: torch.ops.aten.flatten(x), True),
        (lambda x: x.clone().add_(1), True),
        (lambda x: x.detach() + x, True),
        (lambda x: x + torch.ones(3), True),
    ],
)
def test_programs_are_decomposed_where_that_changes_them(
    function: Callable[[Tensor], Tensor], decomposed: bool
) -> None:
    program = torch.export.export(_Function(function), (torch.ones(2, 3),))
    with needed_passes_only([program]):
        assert (program.run_decompositions(default_decompositions()) is not program) is decomposed
    assert program.run_decompositions() is not program


def test_operators_that_are_kept_whole_are_not_decomposed() -> None:
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(2, 3),))
    table = default_decompositions()
    assert has_decompositions(program, table)
    table.pop(torch.ops.aten.linear.default)
    assert not has_decompositions(program, table)


def test_the_program_file_is_the_same() -> None:
    from executorch.exir import to_edge

    def function(x: Tensor) -> Tensor:
        rows = (x * x).mean(-1, keepdim=True).expand(2, 3)
        return torch.where(x > 0, x.exp() - rows, x).permute(1, 0).sum(0)

    def lowered(left_out: bool) -> bytes:
        program = torch.export.export(_Function(function), (torch.ones(2, 3),))
        with needed_passes_only([program]) if left_out else contextlib.nullcontext():
            return bytes(to_edge(program).to_executorch().buffer)

    assert lowered(left_out=True) == lowered(left_out=False)


def test_executorch_is_as_it_was_afterwards() -> None:
    from executorch.backends.xnnpack import xnnpack_preprocess
    from executorch.exir import tensor
    from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
    from executorch.exir.passes.spec_prop_pass import SpecPropPass
    from executorch.exir.program import _program

    def replaced() -> list[Any]:
        return [
            xnnpack_preprocess.XNNPACKPassManager,
            _program._get_aten_to_edge_passes,
            _program.emit_program,
            MemoryPlanningPass.run,
            SpecPropPass.update_placeholder_tensor_specs,
            tensor.dim_order_from_stride,
            ExportGraphSignature.inputs_to_buffers,
        ]

    before = replaced()
    with needed_passes_only([]):
        assert not any(map(operator.is_, before, replaced()))
    assert before == replaced()
    with pytest.raises(RuntimeError), needed_passes_only([]):
        raise RuntimeError
    assert before == replaced()


def _delegated(dynamic: bool) -> bytes:
    """A program file of two delegates and what lies between."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge

    def function(x: Tensor) -> Tensor:
        return torch.exp(torch.cumsum(x * x + 1.0, -1) * 0.5) * 2.0

    rows = {0: torch.export.Dim("rows", min=1, max=9)} if dynamic else None
    program = torch.export.export(_Function(function), (torch.ones(3, 4),), dynamic_shapes=(rows,))
    return bytes(to_edge(program).to_backend(XnnpackPartitioner()).to_executorch().buffer)


@pytest.mark.parametrize("dynamic", [False, True])
def test_delegates_give_what_they_record(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file as where every pass runs them, which for each is to make a module of it."""
    made: list[object] = []
    real = torch.export.ExportedProgram.module
    monkeypatch.setattr(
        torch.export.ExportedProgram, "module", lambda *a, **k: made.append(a) or real(*a, **k)
    )
    expected = _delegated(dynamic)
    before = len(made)
    with delegates_as_recorded():
        assert _delegated(dynamic) == expected
    assert len(made) - before < before / 4
