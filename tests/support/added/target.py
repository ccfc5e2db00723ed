"""A target that is one file: programs of layers alone, in ExecuTorch, with zoexport's own kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from zoexport.core.features import Feature
from zoexport.core.types import Footprint, Lowered, Problem, Progress, TrainingGraph
from zoexport.targets import targets
from zoexport.targets.settings import filled, needs_executorch


@dataclasses.dataclass(frozen=True)
class LayersTarget:
    name: str = "layers-alone"
    summary: str = "programs of single layers"
    engine: str = "executorch"
    notice: str = ""
    has: ClassVar[frozenset[Feature]] = frozenset({Feature.STAGES})
    takes: ClassVar[Mapping[str, tuple[str, ...]]] = {"soc": ()}
    lowering_memory: ClassVar[None] = None

    def check_available(self) -> list[Problem]:
        return needs_executorch(self.name)

    def defaults(self, config: Any) -> Any:
        return filled(config, {"activations": "fp32", "compute": "fp32"})

    def programs_config(self, config: Any) -> Any:
        return config

    def supports(self, config: Any) -> list[Problem]:
        return []

    def lower(self, graph: TrainingGraph, config: Any, folder: Path, progress: Progress) -> Lowered:
        from zoexport.targets.executorch.lower_stages import lower_stages

        return lower_stages(graph, folder, progress)

    def footprints(self, graph: TrainingGraph, progress: Progress) -> dict[str, Footprint]:
        from zoexport.targets.executorch.footprints import split_footprint

        return {name: split_footprint(program) for name, program in graph.programs.items()}


targets.register("layers-alone", LayersTarget())
