"""Training graphs: capture of a model and the passes of a method."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from zoexport.compiler.plan import Plan
from zoexport.core.encoders import check_encoder
from zoexport.core.features import Feature
from zoexport.core.graph import Measured, ModelGraph, RowReader, TrainingGraph
from zoexport.core.progress import Progress
from zoexport.trained import sizes_of


def training_graph(
    planned: Plan,
    model: Any,
    progress: Progress,
    *,
    source: RowReader | None = None,
    chosen: Mapping[str, Any] | None = None,
    measured: Measured | None = None,
) -> TrainingGraph:
    """Capture a model and apply the method's passes.

    The programs accept sequences of any length if the model allows it (``ir.lengths``), else of max_length tokens.

    Args:
        planned: method, target and settings.
        model: language model.
        progress: see ``core.progress.Progress``.
        source, chosen, measured: see :class:`TrainingGraph`.
    """
    from zoexport.ir.lengths import FixedLength

    config = planned.config

    def passed(length: int, *, any_length: bool) -> TrainingGraph:
        graph = captured(planned, model, length, progress)
        graph.any_length, graph.source = any_length, source
        graph.chosen = None if chosen is None else dict(chosen)
        graph.measured = measured or Measured()
        return _passed(planned, model, graph, progress)

    length = capture_length(planned, model, chosen)
    if length is not None:
        with contextlib.suppress(FixedLength):
            return passed(length, any_length=True)
    return passed(config.max_length, any_length=False)


def capture_length(
    planned: Plan, model: Any, chosen: Mapping[str, Any] | None = None
) -> int | None:
    """Return a sequence length that marks sequence dimensions in the captured graph; None if positions are too few."""
    from zoexport.ir.capture import capture_limit
    from zoexport.ir.lengths import marker_prime

    sizes = sizes_of(planned.config, model, chosen)
    return marker_prime(planned.config.max_length, sizes, capture_limit(model))


def captured(
    planned: Plan, model: Any, length: int, progress: Progress, *, max_length: int | None = None
) -> ModelGraph:
    """Capture the model with sequences of ``length`` tokens.

    Args:
        planned: its target decides how experts, recurrences and causal convolutions are captured.
        max_length: most tokens of the sequences to generate; None: the graph is to train, with those of the settings.
    """
    from zoexport.ir.capture import capture
    from zoexport.ir.verify import verify
    from zoexport.models.recurrences import operators

    progress(f"capturing the model{'' if max_length is None else ' to generate'}", None)
    recurrent = Feature.MODEL_OPERATORS in planned.target.has
    with operators(model) if recurrent else contextlib.nullcontext():
        graph = capture(model, length, max_length=max_length or planned.config.max_length)
    verify(graph)
    return graph


def sized_graph(planned: Plan, model: Any, graph: ModelGraph, progress: Progress) -> TrainingGraph:
    """Apply the method's passes to a copy of ``graph`` whose weights have no values.

    The programs have the sizes of those of :func:`training_graph` at max_length.
    """
    from zoexport.ir.graphs import copy_graph
    from zoexport.ir.lengths import set_length
    from zoexport.ir.shapes import record_shapes

    copied = dataclasses.replace(copy_graph(graph), max_length=planned.config.max_length)
    sized = _passed(planned, model, copied, progress, values=False)
    if isinstance(sized, ModelGraph):
        for program in sized.programs.values():
            if sized.length != sized.max_length:
                set_length(program, sized.length, sized.max_length)
            record_shapes(program)
    return sized


def _passed(
    planned: Plan, model: Any, graph: ModelGraph, progress: Progress, *, values: bool = True
) -> TrainingGraph:
    from zoexport import models
    from zoexport.passes.find_linears import linear_weights
    from zoexport.passes.pipeline import run_passes

    check_encoder(model, planned.method, planned.target, planned.config)
    config = planned.target.programs_config(planned.config)
    graph.unquantized = models.unquantized(model, config.weights)
    linear = linear_weights(graph)
    modules = models.adapter_targets(model, *config.modules, linear, config.ranks)
    if values and config.modules[0] == "all-linear":
        others = graph.weights.keys() - linear
        skipped = [
            path
            for path in models.linear_names(model)
            if f"{path}.weight" in others or models.is_left_out(model, path, config.ranks)
        ]
        if skipped:
            names = ", ".join(sorted({path.rpartition(".")[2] for path in skipped}))
            reason = "routers of experts, layers narrower than lora.r, or weights that are not only multiplied with"
            progress(f"leaving out {names}: {reason}", None)
    passes = [
        step
        for step in planned.method.passes(config, modules)
        if (values or not step.reads_values)
        and (step.wants is None or step.wants in planned.target.has)
    ]
    return run_passes(graph, passes, progress)
