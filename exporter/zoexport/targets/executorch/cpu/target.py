"""The targets host and android-cpu: ExecuTorch's runtime with kernels of our own, and what they support."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from zoexport.core.config import as_dict, with_values
from zoexport.core.errors import Problem
from zoexport.core.features import Feature
from zoexport.core.graph import Program, TrainingGraph
from zoexport.core.progress import Progress
from zoexport.core.settings import TrainingSettings
from zoexport.core.target import Footprint, Lowered, LoweringMemory
from zoexport.targets import targets
from zoexport.targets.executorch.generating import GeneratesOnCpu


class CpuTarget(GeneratesOnCpu):
    """Programs of layers that call zoexport's own kernels."""

    def defaults(self, config: TrainingSettings) -> TrainingSettings:
        """Use dynamic int8 activations of quantized layers if the method supports them."""
        rounds = config.rounds_layers and config.weights != "fp32" and config.trained == "lora"
        if config.activations is None and rounds and config.compute in (None, "fp32"):
            config = with_values(config, {"activations": "int8"})
        return super().defaults(config)

    def supports(self, config: TrainingSettings) -> list[Problem]:
        """Combinations of weights, activations and compute that the kernels do not have."""
        settings = as_dict(config)
        problems = []
        if settings["activations"] == "int8":
            problems += _unrounded_layers(config)
        if settings["generate.activations"] == "int8" and settings["weights"] == "fp32":
            problems.append(
                Problem(
                    "setting generate.activations=int8",
                    "rounded inputs are multiplied by int4 and int8 weights",
                    "Leave generate.activations at fp32, or choose weights=int4.",
                )
            )
        if settings["compute"] == "bf16" and not _rounds_products(config):
            problems.append(
                Problem(
                    "setting compute=bf16",
                    "it rounds products of frozen int4 and int8 weights; there are none",
                    "Leave compute at fp32, or choose weights=int4 or int8.",
                )
            )
        return problems

    def lower(
        self, graph: TrainingGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """One .pte with every program as a method."""
        from zoexport.targets.executorch.lower_stages import lower_stages

        return lower_stages(graph, folder, progress)

    def footprint(self, graph: TrainingGraph, program: Program) -> Footprint:
        """Return what is planned in the program file."""
        from zoexport.targets.executorch.footprints import footprint

        return footprint(program)


def _unrounded_layers(config: TrainingSettings) -> list[Problem]:
    """Why there are no products of inputs that are rounded to 8 bits."""
    where, leave = "setting activations=int8", "Leave activations at fp32"
    if config.first_order:
        reason = "no gradient goes through inputs that are rounded"
        return [Problem(where, reason, f"{leave}, or choose a method of zeroth order.")]
    if config.compute == "bf16":
        reason = "compute=bf16 rounds the same inputs"
        return [Problem(f"{where}, compute=bf16", reason, "Choose one of the two.")]
    if not _rounds_products(config):
        reason = "it rounds inputs of frozen int4 and int8 weights; there are none"
        return [Problem(where, reason, f"{leave}, or choose weights=int4 and train adapters.")]
    return []


def _rounds_products(config: TrainingSettings) -> bool:
    return config.trained in ("lora", "sparse") and config.weights != "fp32"


_PHONE = CpuTarget(
    name="android-cpu",
    summary="Android phones' CPU: ExecuTorch's runtime with kernels of our own",
    has=frozenset(Feature) - {Feature.WHOLE},
    takes={"soc": (), "activations": ("fp32", "int8"), "compute": ("fp32", "bf16")},
    generating_lengths=(1, 8, 32, 128),
    lowering_memory=LoweringMemory(32_000_000, 33_000),
)
targets.register("android-cpu", _PHONE)
targets.register(
    "host",
    dataclasses.replace(
        _PHONE,
        name="host",
        summary="this machine's CPU: ExecuTorch's runtime with kernels of our own, as android-cpu",
        # A phone's system writes a mapped file to its flash within seconds, so there it is for the user to ask for.
        preferred={"activation_cache_mb": 256},
    ),
)
