"""The target android-gpu with the engine executorch: ExecuTorch's Vulkan delegate, and what it supports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from zoexport.core.config import as_dict
from zoexport.core.features import Feature
from zoexport.core.settings import TrainingSettings
from zoexport.core.types import Footprint, Lowered, LoweringMemory, Problem, Progress, TrainingGraph
from zoexport.targets import engines
from zoexport.targets.settings import filled, needs_executorch


@dataclasses.dataclass(frozen=True)
class VulkanDelegateTarget:
    """ExecuTorch with the Vulkan delegate, and zoexport's own kernels on the CPU."""

    name: str = "android-gpu"
    summary: str = "Android phones' GPU: ExecuTorch with Vulkan; compiled here, and not run"
    engine: str = "executorch"
    notice: str = ""
    has: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.WHOLE, Feature.STAGES, Feature.TWO_INPUT_PRODUCTS}
    )
    takes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "engine": ("executorch",),
        "soc": (),
        "activations": ("fp32",),
        "compute": ("fp32", "fp16"),
    }
    lowering_memory: ClassVar[LoweringMemory | None] = None

    def check_available(self) -> list[Problem]:
        """Whether ExecuTorch is installed with its Vulkan partitioner."""
        return needs_executorch(self.name, "executorch.backends.vulkan")

    def defaults(self, config: TrainingSettings) -> TrainingSettings:
        """Activations are fp32, and so is arithmetic unless the user says fp16."""
        return filled(config, {"activations": "fp32", "compute": "fp32"})

    def programs_config(self, config: TrainingSettings) -> TrainingSettings:
        """Quantization is the passes' work."""
        return config

    def supports(self, config: TrainingSettings) -> list[Problem]:
        """Combinations that Vulkan's partitioner takes only in part."""
        settings = as_dict(config)
        problems = []
        if not config.staged and settings["weights"] == "int8":
            problems.append(
                Problem(
                    "setting weights=int8",
                    "ExecuTorch 1.5.1's Vulkan partitioner does not take aten._weight_int8pack_mm: 'input[1] dtype "
                    "torch.int8 not in {torch.float16, torch.float32}' (2026-11-22)",
                    "Choose weights=int4 or fp32, or split=layers.",
                )
            )
        return problems

    def lower(
        self, graph: TrainingGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """One .pte with every program as a method."""
        from zoexport.targets.vulkan_delegate.lower import lower_vulkan

        return lower_vulkan(graph, config, folder, progress)

    def footprints(
        self, graph: TrainingGraph, config: TrainingSettings, progress: Progress
    ) -> dict[str, Footprint]:
        """What each program takes on CPU and GPU together, by ExecuTorch's planner: an estimate."""
        from zoexport.ir.graphs import copy_program
        from zoexport.targets.executorch.footprints import whole_footprint
        from zoexport.targets.vulkan_delegate.rules import write_for_vulkan

        found = {}
        for number, (name, program) in enumerate(graph.programs.items()):
            progress("planning programs", number / len(graph.programs))
            copied = copy_program(program, name)
            if not graph.whole:
                write_for_vulkan(graph, copied)
            found[name] = whole_footprint(copied)
        return found


engines.register("android-gpu/executorch", VulkanDelegateTarget())
