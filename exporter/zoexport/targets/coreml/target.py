"""The target ios-coreml and what it supports."""

from __future__ import annotations

from pathlib import Path

from zoexport.core.features import Feature
from zoexport.core.graph import LayerGraph, Program, TrainingGraph
from zoexport.core.progress import Progress
from zoexport.core.settings import TrainingSettings
from zoexport.core.target import Footprint, Lowered, Target
from zoexport.targets import targets


class CoremlTarget(Target):
    """A package that Core ML runs: on an iPhone's CPU, GPU and Neural Engine."""

    def lower(
        self, graph: TrainingGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """One multifunction package."""
        from zoexport.targets.coreml.lower import lower_coreml

        return lower_coreml(graph, folder, progress, half=config.compute == "fp16")

    def lower_generating(
        self, graph: LayerGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """Functions of the same package."""
        from zoexport.targets.coreml.lower import lower_generating

        half = config.compute == "fp16"
        return lower_generating(graph, folder, progress, half=half, staged=config.staged)

    def footprint(self, graph: TrainingGraph, program: Program) -> Footprint:
        """Estimate the size of its tensors, as Core ML does not say what it plans."""
        from zoexport.ir.liveness import live_footprint

        return live_footprint(program)


targets.register(
    "ios-coreml",
    CoremlTarget(
        name="ios-coreml",
        summary="Apple's phones: a Core ML package for iOS 18; read back and evaluated here, and not run",
        engine="coreml",
        package="coremltools",
        has=frozenset(
            {Feature.WHOLE, Feature.STAGES, Feature.TWO_INPUT_PRODUCTS, Feature.SPARSE_PRODUCTS}
        ),
        takes={"soc": (), "activations": ("fp32",), "compute": ("fp32", "fp16")},
        preferred={"compute": "fp16"},
        fixed_labels=True,
        # Fewer than elsewhere: every layer has a function of its own for each, which a phone loads by itself.
        generating_lengths=(1, 32),
    ),
)
