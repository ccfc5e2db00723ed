"""The target ios-coreml with the engine executorch: ExecuTorch's Core ML delegate, and what it supports."""

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
from zoexport.targets.settings import (
    few_labels,
    filled,
    needs_executorch,
    needs_package,
)


@dataclasses.dataclass(frozen=True)
class CoremlDelegateTarget:
    """ExecuTorch whose programs are one Core ML delegate each."""

    name: str = "ios-coreml"
    summary: str = (
        "Apple's phones: ExecuTorch with Core ML; read back and evaluated here, and not run"
    )
    engine: str = "executorch"
    notice: str = ""
    has: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.WHOLE, Feature.STAGES, Feature.TWO_INPUT_PRODUCTS, Feature.SPARSE_PRODUCTS}
    )
    takes: ClassVar[Mapping[str, tuple[str, ...]]] = {"soc": (), "activations": ("fp32",)}
    lowering_memory: ClassVar[LoweringMemory | None] = None

    def check_available(self) -> list[Problem]:
        """Whether coremltools is installed, and ExecuTorch with its Core ML delegate."""
        delegate = "executorch.backends.apple.coreml.executorchcoreml"
        return [*needs_package(self.name, "coremltools"), *needs_executorch(self.name, delegate)]

    def defaults(self, config: TrainingSettings) -> TrainingSettings:
        """Arithmetic and activations are fp32; the number of labels of a whole program is fixed."""
        preferred = {"activations": "fp32", "compute": "fp32", "labels": few_labels(config)}
        return filled(config, preferred)

    def programs_config(self, config: TrainingSettings) -> TrainingSettings:
        """Quantization is the passes' work."""
        return config

    def supports(self, config: TrainingSettings) -> list[Problem]:
        """What the delegate would do to every operation alike."""
        settings = as_dict(config)
        problems = []
        if settings["compute"] != "fp32":
            problems.append(
                Problem(
                    f"settings engine=executorch, compute={settings['compute']}",
                    "ExecuTorch's Core ML delegate rounds every operation of a program alike, and sums and squares "
                    "leave the range of fp16",
                    "Leave compute at fp32, or choose engine=coreml, which rounds products alone.",
                )
            )
        return problems

    def lower(
        self, graph: TrainingGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """One .pte with every program as a method."""
        from zoexport.targets.coreml_delegate.lower import lower_coreml_delegate

        return lower_coreml_delegate(graph, folder, progress)

    def footprints(
        self, graph: TrainingGraph, config: TrainingSettings, progress: Progress
    ) -> dict[str, Footprint]:
        """What the tensors of each program take: an estimate, as Core ML does not say what it plans."""
        from zoexport.ir.liveness import live_footprint

        return {name: live_footprint(program) for name, program in graph.programs.items()}


engines.register("ios-coreml/executorch", CoremlDelegateTarget())
