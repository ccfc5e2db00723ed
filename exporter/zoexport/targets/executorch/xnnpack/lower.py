"""Lowering to ExecuTorch: every program becomes a method of one .pte, delegated to XNNPACK."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from zoexport.core.types import Lowered, Program, Progress, TrainingGraph
from zoexport.ir.capture import quiet
from zoexport.ir.graphs import copy_program, identifier
from zoexport.ir.lengths import set_length
from zoexport.targets.entries import program_entry
from zoexport.targets.executorch.exported import (
    delegates_of,
    export_program,
    fallback_of,
)
from zoexport.targets.executorch.join_linears import join_linears
from zoexport.targets.executorch.program_file import FILE, refused, write_programs
from zoexport.targets.executorch.xnnpack.legalize import Legalizer


def lower_xnnpack(graph: TrainingGraph, folder: Path, progress: Progress) -> Lowered:
    """Lower every program of ``graph`` into ``folder/model.pte``.

    Raises:
        LoweringError: ExecuTorch refused a program.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
    from executorch.exir.passes import MemoryPlanningPass

    from zoexport.targets.executorch.needed_passes import needed_passes_only
    from zoexport.targets.executorch.xnnpack.attention import flatten_attention
    from zoexport.targets.executorch.xnnpack.open_sizes import (
        OpenSizes,
        cut_constants,
        has_open_sizes_left,
        state_open_sizes,
    )
    from zoexport.targets.executorch.xnnpack.partitioning import linear_partitioning
    from zoexport.targets.executorch.xnnpack.quantization_shapes import stated_shapes
    from zoexport.targets.executorch.xnnpack.score_rows import score_rows
    from zoexport.targets.executorch.xnnpack.shared_constants import shared_constants

    legal = {name: copy_program(program, name) for name, program in graph.programs.items()}
    flat = [flatten_attention(graph, program) for program in legal.values()]
    with stated_shapes():
        for program in legal.values():
            join_linears(score_rows(program))
            Legalizer(graph, program).run()
    any_length = (
        graph.any_length
        and all(flat)
        and not any(has_open_sizes_left(program, graph.length) for program in legal.values())
    )
    with stated_shapes():
        generating = _generating(graph)
    exported = {}
    programs = []
    for name, program in legal.items():
        progress(f"exporting {name}", None)
        if any_length:
            cut_constants(program, graph.length)
        elif graph.any_length:
            set_length(program, graph.length, graph.max_length)
        with stated_shapes():
            exported[name] = export_program(program, graph.weights)
        lengths = (1, graph.max_length) if any_length else None
        programs.append(program_entry(program, FILE, lengths=lengths))
    for name, (program, weights) in generating.items():
        progress(f"exporting {name}", None)
        with stated_shapes():
            exported[name] = export_program(program, weights)
    progress("lowering to XNNPACK", None)
    try:
        with (
            quiet(),
            stated_shapes(),
            needed_passes_only([*exported.values()]),
            shared_constants(),
            linear_partitioning(),
        ):
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
                for name in legal:
                    state_open_sizes(edge.exported_program(name), graph.length)
            edge = edge.to_backend(partitioner)
            delegates = {name: delegates_of(edge.exported_program(name)) for name in legal}
            fallback = {name: fallback_of(edge.exported_program(name)) for name in legal}
            progress("writing the program file", None)
            # Caches are the session's, and are neither copied nor planned.
            callers_memory = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
            executorch = edge.to_executorch(
                ExecutorchBackendConfig(
                    memory_planning_pass=dict.fromkeys(generating, callers_memory),
                    sym_shape_eval_pass={name: OpenSizes(graph.length) for name in legal}
                    if any_length
                    else {},
                )
            )
    except Exception as error:
        raise refused("lowering to XNNPACK", error) from error
    required, backends = write_programs(executorch, folder)
    return Lowered(
        "executorch",
        programs,
        required,
        delegates,
        fallback,
        backends=backends,
        distinct_weights=has_distinct_weights(graph.weights),
        generating=[program_entry(program, FILE) for program, _ in generating.values()],
    )


def _generating(graph: TrainingGraph) -> dict[str, tuple[Program, dict[str, torch.Tensor]]]:
    """The programs that generate, legal, by method, each with the weights that it reads by its own names."""
    made = graph.generating
    if made is None:
        return {}
    # What the programs that train were given, such as columns of scales, is not made again.
    for name, tensor in graph.weights.items():
        made.weights.setdefault(name, tensor)
    found = {}
    for program in made.programs.values():
        (stage,) = made.stages_of(program)
        legal = join_linears(copy_program(program, program.name))
        Legalizer(made, legal).run()
        bound = {
            local: made.weights[name] for local, name in stage.bind.items() if name in made.weights
        }
        found[identifier(program.name)] = legal, {**made.weights, **bound}
    supplied = {value.name for program, _ in found.values() for value in program.arguments()}
    for stage in made.stages:
        stage.bind = {local: name for local, name in stage.bind.items() if local in supplied}
    return found


def has_distinct_weights(weights: Mapping[str, torch.Tensor]) -> bool:
    """Whether no two weights that XNNPACK packs have the same codes and different scales.

    ExecuTorch's file of packed weights names an entry by the hash of its codes alone, so it would give both the scales
    of the first. int4 codes are not packed.
    """
    scales: dict[bytes, bytes] = {}
    for name, codes in weights.items():
        if name.endswith(".codes") and codes.dtype == torch.int8:
            own = _digest(weights[name.removesuffix("codes") + "scales"])
            if scales.setdefault(_digest(codes), own) != own:
                return False
    return True


def _digest(tensor: torch.Tensor) -> bytes:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().data).digest()
