"""Operators are rewritten in place as ExecuTorch's tracing rewrites them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import default_decompositions

from zoexport.targets.executorch import in_place
from zoexport.targets.executorch.needed_passes import has_decompositions, needed_passes_only

aten = torch.ops.aten


class _Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def _heads(x: Tensor) -> Tensor:
    """A view of what lies out of order, with a size left open."""
    return aten.reshape(aten.transpose(aten.reshape(x, (5, 2, 3)), 0, 1), (2, -1)) * 2.0


def _shifted(x: Tensor) -> Tensor:
    """A view of what lies out of order that needs no copy."""
    return aten.reshape(aten.transpose(aten.reshape(x, (5, 2, 3)), 0, -2), (2, 5, 3, 1))


def _attention(x: Tensor) -> tuple[Tensor, Tensor]:
    scores = aten.bmm(x.view(1, 5, 6), aten.transpose(x.view(1, 5, 6), 1, 2))
    return aten.softmax(scores, -1, torch.float32), aten.silu(x)


def _parts(x: Tensor) -> Tensor:
    first, second, _ = aten.split_with_sizes(aten.reshape(x, (6, 5)), [1, 2, 3])
    return aten.expand(first, [2, 5]) + 1.0 - aten.permute(second, [0, 1]) / 3.0


FUNCTIONS = [_heads, _shifted, _attention, _parts]


def _exported(function: Callable[[Tensor], Any], *, dynamic: bool) -> torch.export.ExportedProgram:
    rows = {0: torch.export.Dim("rows", min=1, max=9)} if dynamic else None
    return torch.export.export(_Function(function), (torch.ones(5, 6),), dynamic_shapes=(rows,))


def _stated(program: torch.export.ExportedProgram) -> list[Any]:
    """The nodes of a program without their names, which of them share a source, and what they record."""
    places: dict[Any, int] = {}
    sources: dict[Any, int] = {}
    found: list[Any] = []
    for node in program.graph.nodes:
        args = torch.fx.map_arg((node.args, node.kwargs), lambda one: f"%{places[one]}")
        value = node.meta.get("val")
        layouts = [
            (str(one.shape), str(one.stride()), one.dtype) if isinstance(one, Tensor) else str(one)
            for one in (value if isinstance(value, list | tuple) else [value])
        ]
        source = None
        if node.op == "call_function" and node.meta.get("from_node"):
            oldest = node.meta["from_node"][-1]
            while oldest.from_node:
                oldest = oldest.from_node[-1]
            source = sources.setdefault((oldest.name, oldest.graph_id), len(sources))
        places[node] = len(places)
        found.append(
            (node.op, node.op == "call_function" and str(node.target), args, layouts, source)
        )
    return found


def _open(x: Tensor) -> Tensor:
    """What a size that is left open does not forbid."""
    return aten.silu(aten.transpose(aten.reshape(x, (-1, 2, 3)), 1, 2))


@pytest.mark.parametrize(
    ("function", "dynamic"), [*((function, False) for function in FUNCTIONS), (_open, True)]
)
def test_decomposing_in_place_gives_what_tracing_gives(
    function: Callable[[Tensor], Any], dynamic: bool
) -> None:
    table = default_decompositions()
    expected = _exported(function, dynamic=dynamic).run_decompositions(table)
    program = _exported(function, dynamic=dynamic)
    assert has_decompositions(program, table)
    in_place.decompose(program, table)
    assert not has_decompositions(program, table)
    assert _stated(program) == _stated(expected)
    program.validate()
    x = torch.randn(5, 6)
    for ours, theirs in zip(
        torch.utils._pytree.tree_leaves(program.module()(x)),
        torch.utils._pytree.tree_leaves(function(x)),
        strict=True,
    ):
        assert torch.allclose(ours, theirs)


def test_what_a_target_keeps_whole_is_left_alone() -> None:
    program = _exported(_attention, dynamic=False)
    table = default_decompositions()
    table.pop(aten.silu.default)
    in_place.decompose(program, table)
    called = {node.target for node in program.graph.nodes}
    assert aten.silu.default in called and aten.softmax.int not in called


def test_a_softmax_that_changes_the_dtype_is_left_to_tracing() -> None:
    program = _exported(lambda x: aten.softmax(x, -1, torch.float64), dynamic=False)
    in_place.decompose(program, default_decompositions())
    assert has_decompositions(program, default_decompositions())


@pytest.mark.parametrize("delegated", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_program_file_is_the_same_without_tracing(
    function: Callable[[Tensor], Any], delegated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import EdgeCompileConfig, to_edge

    traced: list[object] = []
    run = torch.fx.Interpreter.run
    monkeypatch.setattr(
        torch.fx.Interpreter, "run", lambda self, *a, **k: traced.append(self) or run(self, *a, **k)
    )
    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)

    def lowered(quick: bool) -> tuple[bytes, int]:
        program = _exported(function, dynamic=False)
        traced.clear()
        with needed_passes_only([program]) if quick else contextlib.nullcontext():
            edge = to_edge(program, compile_config=config)
            count = len(traced)
            if delegated:
                edge = edge.to_backend(XnnpackPartitioner())
            return bytes(edge.to_executorch().buffer), count

    ours, count = lowered(quick=True)
    theirs, before = lowered(quick=False)
    assert ours == theirs
    assert before > 4 and not count


def test_blocks_are_traced() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x + 1, (x,))

    program = _exported(function, dynamic=False)
    assert not in_place.is_plain(program.graph_module)
    assert in_place.is_plain(_exported(_heads, dynamic=False).graph_module)
