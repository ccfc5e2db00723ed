"""Lowering to ExecuTorch: every program becomes a method of one .pte, delegated to XNNPACK."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim as ExportDim

from zoexport.core.types import Dim, Lowered, Program, Progress, TrainingGraph
from zoexport.ir.capture import quiet
from zoexport.ir.graphs import EXAMPLE_SIZE, copy_program
from zoexport.ir.lengths import set_length
from zoexport.targets.executorch.program_file import FILE, refused, write_programs


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


def lower_xnnpack(graph: TrainingGraph, folder: Path, progress: Progress) -> Lowered:
    """Lower every program of ``graph`` into ``folder/model.pte``.

    Raises:
        LoweringError: ExecuTorch refused a program.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge

    from zoexport.targets.executorch.attention import flatten_attention
    from zoexport.targets.executorch.legalize import Legalizer
    from zoexport.targets.executorch.needed_passes import needed_passes_only
    from zoexport.targets.executorch.open_sizes import (
        OpenSizes,
        cut_constants,
        has_open_sizes_left,
        state_open_sizes,
    )
    from zoexport.targets.executorch.quantization_shapes import stated_shapes

    legal = {name: copy_program(program, name) for name, program in graph.programs.items()}
    flat = [flatten_attention(graph, program) for program in legal.values()]
    for program in legal.values():
        Legalizer(graph, program).run()
    any_length = (
        graph.any_length
        and all(flat)
        and not any(has_open_sizes_left(program, graph.length) for program in legal.values())
    )
    exported = {}
    programs = []
    for name, program in legal.items():
        progress(f"exporting {name}", None)
        if any_length:
            cut_constants(program, graph.length)
        elif graph.any_length:
            set_length(program, graph.length, graph.seq_len)
        with stated_shapes():
            exported[name] = export_program(program, graph.weights)
        programs.append(_manifest_entry(program, graph.seq_len if any_length else None))
    progress("lowering to XNNPACK", None)
    try:
        with quiet(), stated_shapes(), needed_passes_only([*exported.values()]):
            # Not to_edge_transform_and_lower: it decomposes each program three times.
            partitioner = XnnpackPartitioner()
            kept = {
                operator
                for program in exported.values()
                for operator in partitioner.ops_to_not_decompose(program)[0]
            }
            config = EdgeCompileConfig(
                _check_ir_validity=False, _skip_dim_order=True, preserve_ops=[*kept]
            )
            edge = to_edge(exported, compile_config=config)
            if any_length:
                for name in exported:
                    state_open_sizes(edge.exported_program(name), graph.length)
            edge = edge.to_backend(partitioner)
            delegates = {name: _delegates(edge.exported_program(name)) for name in exported}
            fallback = {name: _fallback(edge.exported_program(name)) for name in exported}
            progress("writing the program file", None)
            executorch = edge.to_executorch(
                ExecutorchBackendConfig(sym_shape_eval_pass=OpenSizes(graph.length))
                if any_length
                else ExecutorchBackendConfig()
            )
    except Exception as error:
        raise refused("lowering to XNNPACK", error) from error
    required = write_programs(executorch, folder)
    distinct = has_distinct_weights(graph.weights)
    return Lowered("executorch", programs, required, delegates, fallback, distinct)


def has_distinct_weights(weights: Mapping[str, torch.Tensor]) -> bool:
    """Whether no two quantized weights have the same codes and different scales.

    ExecuTorch's file of packed weights names an entry by the hash of its codes alone, so it would give both the scales
    of the first.
    """
    scales: dict[bytes, bytes] = {}
    for name, codes in weights.items():
        if name.endswith(".codes"):
            own = _digest(weights[name.removesuffix("codes") + "scales"])
            if scales.setdefault(_digest(codes), own) != own:
                return False
    return True


def _digest(tensor: torch.Tensor) -> bytes:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().data).digest()


def _manifest_entry(program: Program, longest: int | None) -> dict[str, Any]:
    """How a session calls a program; ``longest``: the most tokens a row where it takes rows of any length."""
    inputs = [value.as_dict() for value in program.arguments()]
    if longest is not None:
        tokens = next(value for value in inputs if value["role"] == "tokens")
        tokens["shape"][1] = {"name": "length", "min": 1, "max": longest}
    return {
        "name": program.name,
        "file": FILE,
        "method": program.name,
        "inputs": inputs,
        "outputs": [value.as_dict() for value in program.outputs],
    }


def _calls(exported: Any) -> Sequence[torch.fx.Node]:
    return [node for node in exported.graph_module.graph.nodes if node.op == "call_function"]


def _delegates(exported: Any) -> list[str]:
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


def _fallback(exported: Any) -> dict[str, int]:
    """The operators that stay outside delegates, with how often."""
    skipped = ("getitem", "executorch_call_delegate", "sym_size")
    counts = Counter(_name(node) for node in _calls(exported))
    return {
        name: count
        for name, count in sorted(counts.items())
        if not any(part in name for part in skipped)
    }


def _name(node: torch.fx.Node) -> str:
    target: Any = node.target
    schema = getattr(target, "_schema", None)
    if schema is None:
        return str(getattr(target, "__name__", target))
    return str(schema.name)
