"""Targets whose bundles also have programs for the CPU."""

from __future__ import annotations

from pathlib import Path

from zoexport.core.graph import LayerGraph, TrainingGraph
from zoexport.core.progress import Progress
from zoexport.core.settings import TrainingSettings
from zoexport.core.target import Lowered, Target


class GeneratesOnCpu(Target):
    """Base class of targets that generate text with ExecuTorch's runtime and zoexport's CPU kernels.

    A call with one token is too little work to start a GPU for, and the fixed shapes of an NPU's programs do not fit a
    growing cache.
    """

    def lower_fallback(self, graph: TrainingGraph, folder: Path, progress: Progress) -> Lowered:
        """Write a separate .pte file with programs of layers for the CPU."""
        from zoexport.targets.executorch.lower_stages import lower_stages
        from zoexport.targets.executorch.program_file import FALLBACK

        return lower_stages(graph, folder, progress, FALLBACK)

    def lower_generating(
        self, graph: LayerGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """Write a separate .pte file with the programs that generate text."""
        from zoexport.targets.executorch.lower_stages import lower_stages
        from zoexport.targets.executorch.program_file import GENERATING

        return lower_stages(graph, folder, progress, GENERATING)
