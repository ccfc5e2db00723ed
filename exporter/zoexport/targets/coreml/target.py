"""The target ios-coreml and what it supports."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from zoexport.core.config import as_dict
from zoexport.core.types import Footprint, Lowered, Problem, Progress, TrainingGraph
from zoexport.targets import targets
from zoexport.targets.settings import (
    few_labels,
    filled,
    needs_package,
    refuse_activations,
    refuse_chip,
    refuse_chosen,
    refuse_engine,
    refuse_integers,
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
    encoders: bool = False

    def check_available(self) -> list[Problem]:
        """Whether coremltools is installed."""
        return needs_package(self.name, "coremltools")

    def defaults(self, config: Any) -> Any:
        """Arithmetic is fp16 unless the user says fp32; the number of labels of a whole program is fixed."""
        preferred = {
            "engine": self.engine,
            "activations": "fp32",
            "compute": "fp16",
            "labels": few_labels(config),
        }
        return filled(config, preferred)

    def programs_config(self, config: Any) -> Any:
        """Quantization is the passes' work."""
        return config

    def supports(self, config: Any) -> list[Problem]:
        """What is ExecuTorch's alone."""
        settings = as_dict(config)
        return [
            *refuse_engine(self.name, self.engine, settings),
            *refuse_chip(self.name, settings),
            *refuse_chosen(self.name, settings),
            *refuse_integers(self.name, settings),
            *refuse_activations(self.name, settings, "fp32"),
        ]

    def lower(self, graph: TrainingGraph, config: Any, folder: Path, progress: Progress) -> Lowered:
        """One multifunction package."""
        from zoexport.targets.coreml.lower import lower_coreml

        return lower_coreml(graph, folder, progress, half=config.compute == "fp16")

    def footprints(self, graph: TrainingGraph, progress: Progress) -> dict[str, Footprint]:
        """What the tensors of each program take: an estimate, as Core ML does not say what it plans."""
        from zoexport.ir.liveness import live_footprint

        return {name: live_footprint(program) for name, program in graph.programs.items()}


targets.register("ios-coreml", CoremlTarget())
