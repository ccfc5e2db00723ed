"""Lowering a split graph to ExecuTorch: one .pte whose methods are products and row programs, and the file of weights.

No delegate is needed: the products are zoexport's own kernels over the mapped weights, and what lies between them is
row programs. Methods take every tensor from the caller and give results into the caller's memory, so that neither
weights nor activations are copied.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from zoexport.core.types import Lowered, Program, Progress, TrainingGraph
from zoexport.core.untouched import untouched_zeros
from zoexport.ir.capture import quiet
from zoexport.ir.graphs import copy_program, identifier
from zoexport.targets.entries import program_entry
from zoexport.targets.executorch.exported import stated
from zoexport.targets.executorch.fuse_rows import fuse_rows
from zoexport.targets.executorch.join_linears import join_linears
from zoexport.targets.executorch.needed_passes import needed_passes_only
from zoexport.targets.executorch.products import write_products
from zoexport.targets.executorch.program_file import FILE, callers_memory, refused, write_programs
from zoexport.targets.executorch.row_rules import decompose


def lower_stages(
    graph: TrainingGraph, folder: Path, progress: Progress, file: str = FILE
) -> Lowered:
    """Lower every program of ``graph`` into ``folder/file``.

    Raises:
        LoweringError: ExecuTorch refused a program.
    """
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge

    exported = {}
    fallback = {}
    programs = []
    for number, (name, program) in enumerate(graph.programs.items()):
        progress("lowering programs", number / len(graph.programs))
        fused = lowered_program(program)
        fallback[name] = _of_the_runtime(fused)
        exported[identifier(name)] = _exported(fused)
        # What only a result nobody reads needed is no input any more, such as the bias of a layer's last norm backward.
        programs.append(program_entry(fused, file, fused.inputs))
    progress("writing the program file", None)
    try:
        with quiet(), needed_passes_only([*exported.values()]):
            edge = to_edge(
                exported,
                compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
            )
            executorch = edge.to_executorch(
                ExecutorchBackendConfig(memory_planning_pass=callers_memory())
            )
    except Exception as error:
        raise refused("lowering to ExecuTorch", error) from error
    required, backends = write_programs(executorch, folder, file)
    return Lowered("executorch", programs, required, fallback_ops=fallback, backends=backends)


def lowered_program(program: Program) -> Program:
    """``program`` as it is lowered: :func:`fused_program` with calls of several layers."""
    return join_linears(fused_program(program))


def fused_program(program: Program) -> Program:
    """``program`` as products, and row programs between them."""
    fused = copy_program(program, program.name)
    decompose(fused)
    write_products(fused)
    fuse_rows(fused)
    return fused


def _exported(program: Program) -> torch.export.ExportedProgram:
    inputs: list[InputSpec] = []
    for node in program.module.graph.nodes:
        if node.op == "placeholder":
            node.name = node.target = f"arguments_{len(inputs)}"
            inputs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None))
    # The exported program keeps them, and there is one for each length.
    example = tuple(
        untouched_zeros(tuple(value.sizes()), getattr(torch, value.dtype))
        for value in program.inputs
    )
    return stated(program.module, inputs, example)


def _of_the_runtime(program: Program) -> dict[str, int]:
    """The operators that are ExecuTorch's own and not zoexport's kernels, with how often."""
    counts = Counter(
        str(node.target._schema.name)
        for node in program.module.graph.nodes
        if node.op == "call_function" and hasattr(node.target, "_schema")
    )
    free = ("aten::view",)
    return {
        name: count
        for name, count in sorted(counts.items())
        if not name.startswith("zoexport::") and name not in free
    }
