"""The target ios-mlx and what it supports."""

from __future__ import annotations

from pathlib import Path

from zoexport.core.features import Feature
from zoexport.core.graph import LayerGraph, Program, TrainingGraph
from zoexport.core.progress import Progress
from zoexport.core.settings import TrainingSettings
from zoexport.core.target import Footprint, Lowered, LoweringMemory, Target
from zoexport.targets import targets


class MlxTarget(Target):
    """Functions that MLX runs: on an iPhone's or a Mac's GPU, and on the CPU of a computer."""

    def lower(
        self, graph: TrainingGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """Write a file of functions for each family of programs, or each whole program."""
        from zoexport.targets.mlx.lower import lower_mlx

        return lower_mlx(graph, folder, progress)

    def lower_generating(
        self, graph: LayerGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """Write a file of functions for each family of programs."""
        from zoexport.targets.mlx.lower import lower_generating

        return lower_generating(graph, folder, progress)

    def footprint(self, graph: TrainingGraph, program: Program) -> Footprint:
        """Estimate the peak memory of MLX, which does no memory planning."""
        from zoexport.targets.mlx.footprints import footprint

        return footprint(program)


targets.register(
    "ios-mlx",
    MlxTarget(
        name="ios-mlx",
        summary="Apple's phones and Macs: MLX functions (.mlxfn); run on this machine's CPU too",
        engine="mlx",
        package="mlx",
        has=frozenset(Feature)
        - {Feature.ROUNDED_PRODUCTS, Feature.MODEL_OPERATORS, Feature.ATTENTION}
        - {Feature.SAVED_PRODUCTS},
        fixed_labels=True,
        generating_lengths=(1, 8, 32, 128),
        lowering_memory=LoweringMemory(2_000_000, 8_000, {"int4": 1.4, "int8": 3.2, "fp32": 0.6}),
    ),
)
