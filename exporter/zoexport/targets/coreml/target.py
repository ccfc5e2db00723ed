"""The target ios-coreml and what it supports."""

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
class CoremlTarget:
    """A package that Core ML runs: on an iPhone's CPU, GPU and Neural Engine."""

    name: str = "ios-coreml"
    summary: str = (
        "Apple's phones: a Core ML package for iOS 18; read back and evaluated here, and not run"
    )
    engine: str = "coreml"
    notice: str = ""
    has: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.WHOLE, Feature.STAGES, Feature.TWO_INPUT_PRODUCTS, Feature.SPARSE_PRODUCTS}
    )
    takes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "soc": (),
        "activations": ("fp32",),
        "compute": ("fp32", "fp16"),
    }
    # Fewer than elsewhere: every layer has a function of its own for each, which a phone loads by itself.
    generating_lengths: ClassVar[tuple[int, ...]] = (1, 32)
    generates_together: ClassVar[bool] = False
    lowering_memory: ClassVar[LoweringMemory | None] = None

    def check_available(self) -> list[Problem]:
        """Whether coremltools is installed."""
        return needs_package(self.name, "coremltools")

    def defaults(self, config: TrainingSettings) -> TrainingSettings:
        """Arithmetic is fp16 unless the user says fp32; the number of labels of a whole program is fixed."""
        preferred = {
            "activations": "fp32",
            "compute": "fp16",
            "labels": few_labels(config),
        }
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
        """One multifunction package."""
        from zoexport.targets.coreml.lower import lower_coreml

        return lower_coreml(graph, folder, progress, half=config.compute == "fp16")

    def lower_generating(
        self,
        graph: TrainingGraph,
        config: TrainingSettings,
        folder: Path,
        progress: Progress,
    ) -> LoweredGenerating:
        """Functions of the same package."""
        from zoexport.targets.coreml.lower import lower_generating

        half = config.compute == "fp16"
        return lower_generating(graph, folder, progress, half=half, staged=config.staged)

    def footprints(
        self, graph: TrainingGraph, config: TrainingSettings, progress: Progress
    ) -> dict[str, Footprint]:
        """What the tensors of each program take: an estimate, as Core ML does not say what it plans."""
        from zoexport.ir.liveness import live_footprint

        return {name: live_footprint(program) for name, program in graph.programs.items()}


targets.register("ios-coreml", CoremlTarget())
