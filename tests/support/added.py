"""A target that is one file: programs of layers alone, in ExecuTorch, with zoexport's own kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoexport.core.features import Feature
from zoexport.core.graph import Program, TrainingGraph
from zoexport.core.progress import Progress
from zoexport.core.target import Footprint, Lowered, Target
from zoexport.targets import targets


class LayersTarget(Target):
    def lower(self, graph: TrainingGraph, config: Any, folder: Path, progress: Progress) -> Lowered:
        from zoexport.targets.executorch.lower_stages import lower_stages

        return lower_stages(graph, folder, progress)

    def footprint(self, graph: TrainingGraph, program: Program) -> Footprint:
        from zoexport.targets.executorch.footprints import footprint

        return footprint(program)


targets.register(
    "layers-alone",
    LayersTarget(
        name="layers-alone",
        summary="programs of single layers",
        has=frozenset({Feature.STAGES}),
    ),
)
