"""Lowering to ExecuTorch's Vulkan delegate: every program becomes a method of one .pte.

Whole programs have rows of one length and one number of labels, and their weights inside the delegate, int4 as such. In
programs of single layers weights stay inputs that stages bind; a kernel of ours unpacks them on the CPU, and the
delegate gets numbers. Nothing of it is run while compiling: ExecuTorch's Python package has no Vulkan runtime.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import torch

from zoexport.core.settings import TrainingSettings
from zoexport.core.types import Lowered, Program, Progress, TrainingGraph
from zoexport.ir.capture import quiet
from zoexport.ir.graphs import copy_program, identifier, is_call, operand, shape_of, zo
from zoexport.ir.lengths import close_sizes
from zoexport.targets.entries import program_entry
from zoexport.targets.executorch.exported import (
    delegates_of,
    export_program,
    fallback_of,
    products_among,
)
from zoexport.targets.executorch.needed_passes import needed_passes_only
from zoexport.targets.executorch.program_file import FILE, memory_of, refused, write_programs
from zoexport.targets.vulkan_delegate.partitions import needed_steps_only, partitioner_of
from zoexport.targets.vulkan_delegate.rules import write_for_vulkan

NOT_RUN = (
    "not run: this installation's ExecuTorch has no Vulkan runtime, so that what its GPU computes was compared with "
    "nothing"
)
_LOGITS = 16 << 20
"""Elements of the logits of one call, which have memory of their own on a GPU however few labels there are."""
_LABELS = (8, 64)
"""Least and most label entries of one call."""
_OF_THE_CPU = {
    "zoexport::zo_update": "a kernel of ours: noise has the same bits everywhere",
    "zoexport::zo_update_half": "a kernel of ours: noise has the same bits everywhere",
    "zoexport::sparse_add_mm": "a kernel of ours: noise has the same bits everywhere",
    "zoexport::zo_perturb": "a kernel of ours: noise has the same bits everywhere",
    "zoexport::zo_perturb_one": "a kernel of ours: noise has the same bits everywhere",
    "zoexport::label_logprobs": "a kernel of ours: adds up in double precision, which the delegate lacks",
    "zoexport::label_gradient": "a kernel of ours: adds up in double precision, which the delegate lacks",
    "zoexport::embedding_int4": "a kernel of ours: reads int4 weights that stages bind, of which the delegate takes "
    "constants alone",
}


def lower_vulkan(
    graph: TrainingGraph, config: TrainingSettings, folder: Path, progress: Progress
) -> Lowered:
    """Lower every program of ``graph`` into ``folder/model.pte``.

    Programs of a whole model take as many labels in a call as fit; ``graph.max_labels`` says so afterwards.

    Raises:
        LoweringError: ExecuTorch refused a program.
    """
    edge = delegated(graph, config, progress)
    fallback = {name: fallback_of(edge.program(name)) for name in graph.programs}
    delegates = {name: delegates_of(edge.program(name)) for name in graph.programs}
    progress("writing the program file", None)
    try:
        with quiet():
            executorch = edge.manager.to_executorch(memory_of(graph))
    except Exception as error:
        raise refused("lowering to Vulkan", error) from error
    required, backends = write_programs(executorch, folder)
    return Lowered(
        "executorch",
        edge.entries,
        required,
        delegates,
        fallback,
        fallback_reasons={
            name: {operator: _reason(operator, edge.skipped[name]) for operator in found}
            for name, found in fallback.items()
        },
        products_outside={name: products_among(found) for name, found in fallback.items()},
        backends=backends,
        notes=[NOT_RUN],
    )


@dataclasses.dataclass
class Delegated:
    """Programs in ExecuTorch's edge dialect, with delegates.

    ``entries`` are those of the manifest; ``skipped`` says, by program, why the partitioner left an operator out.
    """

    manager: Any
    entries: list[dict[str, Any]]
    skipped: dict[str, dict[str, str]]

    def program(self, name: str) -> Any:
        """The program ``name`` as torch.export states it; run in Python, its delegates are torch's own operators."""
        return self.manager.exported_program(identifier(name))


def delegated(graph: TrainingGraph, config: TrainingSettings, progress: Progress) -> Delegated:
    """Rewrite, export and partition every program.

    Raises:
        LoweringError: ExecuTorch refused a program.
    """
    from executorch.exir import EdgeCompileConfig, to_edge

    if graph.whole:
        graph.max_labels = _label_entries(graph)
    exported, entries = {}, []
    for number, (name, program) in enumerate(graph.programs.items()):
        progress("exporting programs", number / len(graph.programs))
        sized = sized_program(graph, program)
        constants = write_for_vulkan(graph, sized)
        kept = [value for value in sized.inputs if value.name not in constants]
        entries.append(program_entry(sized, FILE, None if graph.whole else kept))
        exported[identifier(name)] = export_program(
            sized if graph.whole else _with_arguments(sized, constants),
            {**graph.weights, **constants},
        )
    progress("lowering to Vulkan", None)
    skipped: dict[str, dict[str, str]] = {}
    try:
        with quiet(), needed_passes_only([*exported.values()]):
            edge = to_edge(
                exported,
                compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
            )
            for name in graph.programs:
                skipped[name] = {}
                partitioner = partitioner_of(config, graph, skipped[name])
                with needed_steps_only():
                    edge = edge.to_backend({identifier(name): partitioner})
    except Exception as error:
        raise refused("lowering to Vulkan", error) from error
    return Delegated(edge, entries, skipped)


def _label_entries(graph: TrainingGraph) -> int:
    """Label entries in one call."""
    least, most = _LABELS
    logits = max(
        math.prod(shape_of(operand(node))) // shape_of(operand(node))[1]
        for program in graph.programs.values()
        for node in program.module.graph.nodes
        if is_call(node, zo.label_logprobs)
    )
    return min(graph.max_labels, max(least, min(most, _LOGITS // logits // 8 * 8)))


def sized_program(graph: TrainingGraph, program: Program) -> Program:
    """A copy whose sizes are numbers."""
    sized = copy_program(program, program.name)
    if graph.whole:
        close_sizes(graph, sized)
    return sized


def _with_arguments(program: Program, constants: dict[str, torch.Tensor]) -> Program:
    """``program`` with bound weights among what a caller supplies, in the order of the manifest."""
    inputs = [
        value if value.name in constants else dataclasses.replace(value, role="bound")
        for value in program.inputs
    ]
    return dataclasses.replace(program, inputs=inputs)


def _reason(operator: str, skipped: dict[str, str]) -> str:
    return _OF_THE_CPU.get(operator) or skipped.get(operator, "no reason given")
