"""Lowering a split graph to ExecuTorch: one .pte whose methods are products and row programs, and the file of weights.

No delegate is needed: the products are zoexport's own kernels over the mapped weights, and what lies between them is
row programs. Methods take every tensor from the caller and give results into the caller's memory, so that neither
weights nor activations are copied.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from zoexport.core.graph import Program, TrainingGraph
from zoexport.core.progress import Progress
from zoexport.core.target import Lowered
from zoexport.ir.graphs import copy_program
from zoexport.targets.entries import program_entry
from zoexport.targets.executorch.fuse_rows import fuse_rows
from zoexport.targets.executorch.join_linears import join_linears
from zoexport.targets.executorch.products import write_products
from zoexport.targets.executorch.program_file import FILE, refused
from zoexport.targets.executorch.row_rules import decompose
from zoexport.targets.executorch.score_rows import score_rows


def lower_stages(
    graph: TrainingGraph, folder: Path, progress: Progress, file: str = FILE
) -> Lowered:
    """Lower every program of ``graph`` into ``folder/file``.

    Raises:
        LoweringError: ExecuTorch refused a program.
    """
    from zoexport.targets.executorch.emit import write

    fused = {}
    for number, (name, program) in enumerate(graph.programs.items()):
        progress("lowering programs", number / len(graph.programs))
        fused[name] = lowered_program(program)
    progress("writing the program file", None)
    try:
        required = write(fused.values(), folder / file)
    except Exception as error:
        raise refused("lowering to ExecuTorch", error) from error
    # Lowering removes unused inputs, such as the bias of a layer's last norm in backward programs.
    programs = [program_entry(program, file, program.inputs) for program in fused.values()]
    fallback = {name: _of_the_runtime(program) for name, program in fused.items()}
    return Lowered("executorch", graph, programs, required, fallback_ops=fallback)


def lowered_program(program: Program) -> Program:
    """``program`` as it is lowered: :func:`fused_program` with calls of several layers, and no logits of labels."""
    scored = score_rows(copy_program(program, program.name))
    return join_linears(fused_program(scored))


def fused_program(program: Program) -> Program:
    """``program`` as products, and row programs between them."""
    fused = copy_program(program, program.name)
    decompose(fused)
    write_products(fused)
    fuse_rows(fused)
    return fused


def _of_the_runtime(program: Program) -> dict[str, int]:
    """Return the operators that are ExecuTorch's own and not zoexport's kernels, with how often."""
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
