"""The target android-gpu: programs of layers on zoexport's own shaders for Vulkan, and what they support."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from zoexport.core.features import Feature
from zoexport.core.settings import TrainingSettings
from zoexport.core.types import Footprint, Lowered, LoweringMemory, Problem, Progress, TrainingGraph
from zoexport.targets import targets
from zoexport.targets.settings import filled


@dataclasses.dataclass(frozen=True)
class VulkanTarget:
    """Programs of layers as calls of compute shaders, on whatever device Vulkan has."""

    name: str = "android-gpu"
    summary: str = "GPUs of Android phones and of computers: zoexport's own shaders for Vulkan"
    engine: str = "vulkan"
    notice: str = ""
    has: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.STAGES, Feature.TWO_INPUT_PRODUCTS, Feature.ATTENTION, Feature.DROPOUT}
    )
    takes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "engine": ("vulkan",),
        "soc": (),
        "activations": ("fp32",),
        "compute": ("fp32",),
    }
    lowering_memory: ClassVar[LoweringMemory | None] = None

    def check_available(self) -> list[Problem]:
        """Nothing but zoexport itself is needed: no device, and no compiler of shaders."""
        return []

    def defaults(self, config: TrainingSettings) -> TrainingSettings:
        """Arithmetic and activations are fp32."""
        return filled(config, {"activations": "fp32", "compute": "fp32"})

    def programs_config(self, config: TrainingSettings) -> TrainingSettings:
        """Quantization is the passes' work."""
        return config

    def supports(self, config: TrainingSettings) -> list[Problem]:
        """Nothing but its features and choices."""
        return []

    def lower(
        self, graph: TrainingGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """One file of all programs."""
        from zoexport.targets.vulkan.lower import lower_vulkan

        return lower_vulkan(graph, folder, progress)

    def footprints(self, graph: TrainingGraph, progress: Progress) -> dict[str, Footprint]:
        """What each program takes of the pool."""
        from zoexport.targets.vulkan.lower import footprint

        found = {}
        for number, (name, program) in enumerate(graph.programs.items()):
            progress("planning programs", number / len(graph.programs))
            found[name] = footprint(program)
        return found


targets.register("android-gpu", VulkanTarget())
