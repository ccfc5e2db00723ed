"""The targets host and android-cpu: ExecuTorch with XNNPACK, and what they support."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from zoexport.core.config import as_dict, with_values
from zoexport.core.features import Feature
from zoexport.core.settings import TrainingSettings
from zoexport.core.types import (
    Footprint,
    Lowered,
    LoweringMemory,
    Problem,
    Program,
    Progress,
    Target,
    TrainingGraph,
)
from zoexport.targets import targets


class XnnpackTarget(Target):
    """ExecuTorch with the XNNPACK delegate and zoexport's own kernels."""

    def defaults(self, config: TrainingSettings) -> TrainingSettings:
        """Also round the activations of whole programs with quantized weights to int8."""
        if config.activations is None and not config.staged and config.weights != "fp32":
            config = with_values(config, {"activations": "int8"})
        return super().defaults(config)

    def supports(self, config: TrainingSettings) -> list[Problem]:
        """Combinations of weights, activations and compute that XNNPACK cannot run."""
        settings = as_dict(config)
        pair = settings["weights"], settings["activations"]
        problems = []
        if pair == ("fp32", "int8"):
            problems.append(
                Problem(
                    "settings weights=fp32, activations=int8",
                    "XNNPACK has no product of int8 activations and fp32 weights",
                    "Choose weights=int8 or int4, or activations=fp32.",
                )
            )
        if config.staged and settings["activations"] == "int8":
            problems += _unrounded_layers(config)
        if settings["generate.activations"] == "int8" and (
            not config.staged or settings["weights"] != "int4"
        ):
            problems.append(
                Problem(
                    "setting generate.activations=int8",
                    "rounded inputs are multiplied by int4 weights in programs of single layers",
                    "Leave generate.activations at fp32, or choose weights=int4 and granularity=layer.",
                )
            )
        if settings["compute"] == "bf16" and not _rounds_products(config):
            problems.append(
                Problem(
                    "setting compute=bf16",
                    "it rounds products of frozen int4 and int8 weights in programs of single layers; there are none",
                    "Leave compute at fp32, or choose granularity=layer and weights=int4 or int8.",
                )
            )
        if not config.staged and pair == ("int8", "fp32"):
            problems.append(
                Problem(
                    "settings weights=int8, activations=fp32",
                    "ExecuTorch has no XNNPACK lowering of int8 weights with fp32 activations",
                    "Choose activations=int8, or weights=int4 or fp32.",
                )
            )
        return problems

    def lower(
        self, graph: TrainingGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """One .pte with every program as a method."""
        if not graph.whole:
            from zoexport.targets.executorch.lower_stages import lower_stages

            return lower_stages(graph, folder, progress)
        from zoexport.targets.executorch.xnnpack.lower import lower_xnnpack

        return lower_xnnpack(graph, folder, progress)

    def lower_generating(
        self, graph: TrainingGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """One .pte of their own, of zoexport's own kernels, which read a row of activations as fast as weights come."""
        from zoexport.targets.executorch.lower_stages import lower_stages
        from zoexport.targets.executorch.program_file import GENERATING

        return lower_stages(graph, folder, progress, GENERATING)

    def footprint(self, graph: TrainingGraph, program: Program) -> Footprint:
        """Return what ExecuTorch plans."""
        from zoexport.ir.graphs import copy_program
        from zoexport.targets.executorch.footprints import split_footprint, whole_footprint
        from zoexport.targets.executorch.join_linears import join_linears
        from zoexport.targets.executorch.xnnpack.score_rows import score_rows

        if not graph.whole:
            return split_footprint(program)
        return whole_footprint(join_linears(score_rows(copy_program(program, program.name))))


def _unrounded_layers(config: TrainingSettings) -> list[Problem]:
    """Why programs of single layers have no products of inputs that are rounded to 8 bits."""
    where, leave = "setting activations=int8", "Leave activations at fp32"
    if config.first_order:
        reason = "no gradient goes through inputs that are rounded"
        return [Problem(where, reason, f"{leave}, or choose a method of zeroth order.")]
    if config.compute == "bf16":
        reason = "compute=bf16 rounds the same inputs"
        return [Problem(f"{where}, compute=bf16", reason, "Choose one of the two.")]
    if config.weights != "int4" or not _rounds_products(config):
        reason = "programs of single layers round inputs of frozen int4 weights; there are none"
        return [Problem(where, reason, f"{leave}, or choose weights=int4 and train adapters.")]
    return []


def _rounds_products(config: TrainingSettings) -> bool:
    frozen = config.trained in ("lora", "sparse")
    return config.staged and frozen and config.weights != "fp32"


_PHONE = XnnpackTarget(
    name="android-cpu",
    summary="Android phones' CPU: ExecuTorch with XNNPACK",
    has=frozenset(Feature),
    takes={"soc": (), "activations": ("fp32", "int8"), "compute": ("fp32", "bf16")},
    generating_lengths=(1, 8, 32, 128),
    generates_together=True,
    lowering_memory=LoweringMemory(32_000_000, 33_000, {"int4": 1.9, "int8": 5.1, "fp32": 13.1}),
)
targets.register("android-cpu", _PHONE)
targets.register(
    "host",
    dataclasses.replace(
        _PHONE,
        name="host",
        summary="this machine's CPU: ExecuTorch with XNNPACK, as android-cpu",
        # A phone's system writes a mapped file to its flash within seconds, so there it is for the user to ask for.
        preferred={"activation_cache_mb": 256},
    ),
)
