"""Whole programs on their way to ExecuTorch: exported with their weights inside, and what is said of them lowered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim as ExportDim

from zoexport.core.types import Dim, Program
from zoexport.ir.capture import quiet
from zoexport.ir.graphs import EXAMPLE_SIZE


class _WithWeights(torch.nn.Module):
    """A program as a module that owns its weights; its arguments are the program's other inputs."""

    def __init__(self, program: Program, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.program = program.module
        self.sources: list[str | int] = []
        arguments = 0
        for number, value in enumerate(program.inputs):
            if value.role == "weight":
                self.register_buffer(f"weight_{number}", _own_storage(weights[value.name]))
                self.sources.append(f"weight_{number}")
            else:
                self.sources.append(arguments)
                arguments += 1

    def forward(self, *arguments: torch.Tensor) -> Any:
        """Arguments in the program's order, outputs in the program's order."""
        return self.program(
            *(
                getattr(self, source) if isinstance(source, str) else arguments[source]
                for source in self.sources
            )
        )


def _own_storage(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` alone in its storage: XNNPACK's serializer reads every storage from its start."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return (
        tensor
        if whole and tensor.is_contiguous()
        else tensor.clone(memory_format=torch.contiguous_format)
    )


def export_program(
    program: Program, weights: dict[str, torch.Tensor]
) -> torch.export.ExportedProgram:
    """A program with its weights inside, as torch.export states it."""
    example = []
    dynamic: list[dict[int, Any]] = []
    dims: dict[str, Any] = {}
    open_sizes = {
        size.name: size
        for value in program.arguments()
        for size in value.shape
        if isinstance(size, Dim)
    }
    # Each has its own, so that torch.export takes none for another.
    examples = {
        name: min(size.max, EXAMPLE_SIZE + number)
        for number, (name, size) in enumerate(open_sizes.items())
    }
    for value in program.arguments():
        sizes = [examples[size.name] if isinstance(size, Dim) else size for size in value.shape]
        example.append(torch.zeros(sizes, dtype=getattr(torch, value.dtype)))
        dynamic.append(
            {
                axis: dims.setdefault(size.name, ExportDim(size.name, min=size.min, max=size.max))
                for axis, size in enumerate(value.shape)
                if isinstance(size, Dim)
            }
        )
    with torch.no_grad(), quiet():
        return torch.export.export(
            _WithWeights(program, weights),
            tuple(example),
            dynamic_shapes=(tuple(dynamic),),
            strict=False,
        )


def _calls(exported: Any) -> Sequence[torch.fx.Node]:
    return [node for node in exported.graph_module.graph.nodes if node.op == "call_function"]


def delegates_of(exported: Any) -> list[str]:
    """What each delegate of a program holds: its backend and operator counts."""
    found = []
    for node in exported.graph_module.graph.nodes:
        if node.op != "get_attr" or "lowered_module" not in str(node.target):
            continue
        module = getattr(exported.graph_module, node.target)
        counts = Counter(_name(call) for call in _calls(module.original_module))
        operators = ", ".join(f"{name} x{count}" for name, count in sorted(counts.items()))
        found.append(f"{module.backend_id}: {operators}")
    return found


def fallback_of(exported: Any) -> dict[str, int]:
    """The operators that stay outside delegates, with how often."""
    skipped = ("getitem", "executorch_call_delegate", "sym_size")
    counts = Counter(_name(node) for node in _calls(exported))
    return {
        name: count
        for name, count in sorted(counts.items())
        if not any(part in name for part in skipped)
    }


_PRODUCTS = ("mm", "bmm", "addmm", "linear", "matmul")


def is_product(operator: str) -> bool:
    """Whether an operator, by the name of its schema, is a matrix product."""
    return operator.partition("::")[2].startswith(_PRODUCTS)


def products_among(operators: Mapping[str, int]) -> dict[str, int]:
    """The matrix products among the operators of :func:`fallback_of`."""
    return {name: count for name, count in operators.items() if is_product(name)}


def _name(node: torch.fx.Node) -> str:
    target: Any = node.target
    schema = getattr(target, "_schema", None)
    if schema is None:
        return str(getattr(target, "__name__", target))
    return str(schema.name)
