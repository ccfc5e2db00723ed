"""The target ios-mlx and what it supports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from zoexport.core.features import Feature
from zoexport.core.settings import TrainingSettings
from zoexport.core.types import (
    Footprint,
    Lowered,
    LoweredGenerating,
    LoweringMemory,
    Problem,
    Progress,
    TrainingGraph,
)
from zoexport.targets import targets
from zoexport.targets.settings import (
    few_labels,
    filled,
    needs_package,
)


@dataclasses.dataclass(frozen=True)
class MlxTarget:
    """Functions that MLX runs: on an iPhone's or a Mac's GPU, and on the CPU of a computer."""

    name: str = "ios-mlx"
    summary: str = "Apple's phones and Macs: MLX functions (.mlxfn); run on this machine's CPU too"
    engine: str = "mlx"
    notice: str = ""
    has: ClassVar[frozenset[Feature]] = frozenset(Feature) - {
        Feature.ROUNDED_PRODUCTS,
        Feature.ATTENTION,
        Feature.SAVED_PRODUCTS,
    }
    takes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "soc": (),
        "activations": ("fp32",),
        "compute": ("fp32",),
    }
    generating_lengths: ClassVar[tuple[int, ...]] = (1, 8, 32, 128)
    generates_together: ClassVar[bool] = False
    lowering_memory: ClassVar[LoweringMemory] = LoweringMemory(
        2_000_000, 8_000, {"int4": 1.4, "int8": 3.2, "fp32": 0.6}
    )

    def check_available(self) -> list[Problem]:
        """Whether MLX is installed."""
        return needs_package(self.name, "mlx")

    def defaults(self, config: TrainingSettings) -> TrainingSettings:
        """Arithmetic and activations are fp32; the number of labels of a whole program is fixed."""
        preferred = {"activations": "fp32", "compute": "fp32", "labels": few_labels(config)}
        return filled(config, preferred)

    def programs_config(self, config: TrainingSettings) -> TrainingSettings:
        """Quantization is the passes' work."""
        return config

    def supports(self, config: TrainingSettings) -> list[Problem]:
        """Nothing but its features and choices."""
        return []

    def lower(
        self, graph: TrainingGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """A file of functions for each family of programs, or each whole program."""
        from zoexport.targets.mlx.lower import lower_mlx

        return lower_mlx(graph, folder, progress)

    def lower_generating(
        self,
        graph: TrainingGraph,
        config: TrainingSettings,
        folder: Path,
        progress: Progress,
    ) -> LoweredGenerating:
        """A file of functions for each family of programs."""
        from zoexport.targets.mlx.lower import lower_generating

        return lower_generating(graph, folder, progress)

    def footprints(
        self, graph: TrainingGraph, config: TrainingSettings, progress: Progress
    ) -> dict[str, Footprint]:
        """What MLX holds at once of each program: an estimate, as MLX plans nothing beforehand."""
        from zoexport.targets.mlx.footprints import footprint

        found = {}
        for number, (name, program) in enumerate(graph.programs.items()):
            progress("planning programs", number / len(graph.programs))
            found[name] = footprint(program)
        return found


targets.register("ios-mlx", MlxTarget())
