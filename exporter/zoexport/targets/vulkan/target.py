"""The target android-gpu: programs of layers on zoexport's own shaders for Vulkan, and what they support."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from zoexport.core.features import Feature
from zoexport.core.graph import TrainingGraph
from zoexport.core.progress import Progress
from zoexport.core.settings import TrainingSettings
from zoexport.core.target import Footprint, Lowered
from zoexport.targets import targets
from zoexport.targets.executorch.generating import GeneratesOnCpu


class VulkanTarget(GeneratesOnCpu):
    """Programs of layers as calls of compute shaders, on any Vulkan device.

    The bundle also has the same programs for the CPU, with the same weights, for devices without a
    GPU. Text generation runs only on the CPU.
    """

    def lower(
        self, graph: TrainingGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """Write one file with all programs for Vulkan, and one for the CPU."""
        from zoexport.ir.graphs import copy_graph
        from zoexport.targets.vulkan.lower import lower_vulkan

        graph = copy_graph(graph)
        lowered = lower_vulkan(graph, folder, progress, half=config.compute == "fp16")
        on_cpu = self.lower_fallback(graph, folder, progress)
        return dataclasses.replace(lowered, fallback=on_cpu)

    def footprints(
        self, graph: TrainingGraph, config: TrainingSettings, progress: Progress
    ) -> dict[str, Footprint]:
        """Return each program's memory use in the pool and in the windows of weights."""
        from zoexport.targets.vulkan.lower import footprints

        return footprints(graph, progress, half=config.compute == "fp16")


targets.register(
    "android-gpu",
    VulkanTarget(
        name="android-gpu",
        summary="GPUs of Android phones and of computers: zoexport's own shaders for Vulkan",
        engine="vulkan",
        has=frozenset(
            {
                Feature.STAGES,
                Feature.TWO_INPUT_PRODUCTS,
                Feature.ATTENTION,
                Feature.DROPOUT,
                Feature.ENCODERS,
            }
        ),
        takes={"soc": (), "activations": ("fp32",), "compute": ("fp32", "fp16")},
        generating_lengths=(1, 8, 32, 128),
    ),
)
