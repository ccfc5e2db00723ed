"""Text generation programs, which share model and weights with the training programs."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.core.config import with_values
from zoexport.core.errors import LoweringError, ModelError, VerifyError
from zoexport.core.graph import LayerGraph, ModelGraph, TrainingGraph
from zoexport.core.progress import Progress
from zoexport.core.target import Lowered
from zoexport.data.text_entry import end_tokens

if TYPE_CHECKING:
    from zoexport.compiler.plan import Plan
    from zoexport.core.settings import TrainingSettings
    from zoexport.core.target import Pass

_LOG = logging.getLogger(__name__)

PREFIX = "generate."
"""Prefix of the names of generation programs."""
_REMEDY = "export what was trained (zoexport adapter export) and generate with transformers"


@dataclasses.dataclass(frozen=True)
class Generating:
    """Generation programs of a bundle.

    Attributes:
        entry: entry of the manifest.
        required_ops: operators that the device's runtime needs in addition to those of the training
            programs.
        graph: graph as written to the bundle; None if there are no programs.
        slow: why generation is slow; empty if it is not.
    """

    entry: dict[str, Any]
    required_ops: list[str] = dataclasses.field(default_factory=list)
    graph: LayerGraph | None = None
    slow: str = ""

    @property
    def weights(self) -> list[str]:
        """Names of the tensors that the programs read from the file of weights."""
        from zoexport.ir.frozen import bound_weights

        return [] if self.graph is None else bound_weights(self.graph)

    def notes(self, config: TrainingSettings) -> list[str]:
        """Return why the bundle generates no text, or slowly, unless the settings disable generation."""
        problem = self.entry.get("problem", self.slow or None)
        return [] if problem is None or not config.generate else [problem]


def generating(
    planned: Plan,
    loaded: Any,
    lowered: Lowered,
    folder: Path,
    progress: Progress,
    *,
    beside: Sequence[str],
) -> Generating:
    """Write the programs that generate text into ``folder``, if settings, target and model allow it.

    Args:
        lowered: the programs that train.
        beside: names of the weights that these programs read from the bundle's file of weights.
    """
    *_, last = lowered.engines()
    trained = last.graph
    graph = generating_graph(planned, loaded.model, trained, progress, beside=beside)
    if isinstance(graph, Generating):
        return graph
    recomputes = min(graph.lengths) > 1
    try:
        written = planned.target.lower_generating(graph, planned.config, folder, progress)
    except LoweringError as error:
        if not recomputes:
            raise
        return Generating({"problem": _sentence(loaded.model, error.expected)})
    stated = written.graph
    assert isinstance(stated, LayerGraph)
    entry = {
        "context": stated.max_labels,
        "lengths": stated.lengths,
        "stop_tokens": sorted(end_tokens(loaded)),
        "programs": written.programs,
        "stages": [
            {"name": stage.name, "forward": stage.forward, "bind": stage.bind}
            for stage in stated.stages
        ],
        **({} if written.engine == lowered.engine else {"engine": written.engine}),
    }
    slow = (
        f"{type(loaded.model).__name__} generates slowly, and at most {stated.max_labels} tokens with the prompt: "
        "its layers cannot keep what they computed, so that each new token computes all tokens again"
        if recomputes
        else ""
    )
    return Generating(entry, written.required_ops, stated, slow)


def generating_graph(
    planned: Plan,
    model: Any,
    graph: TrainingGraph,
    progress: Progress,
    *,
    beside: Sequence[str] = (),
) -> LayerGraph | Generating:
    """Return the graph of the programs that generate text, or the reason why there are none.

    Args:
        graph: graph of the programs that train.
        beside: names of the weights that these programs read from the bundle's file of weights.
    """
    problem = _problem(planned, graph)
    if problem is not None:
        return Generating({"problem": problem})
    try:
        made = _made(planned, model, graph, progress)
    except VerifyError as error:
        _LOG.debug("no programs that generate: %s", error)
        return Generating({"problem": _sentence(model, error.expected)})
    lacking = (name for name in made.quantized if f"{name}.codes" not in graph.weights)
    if isinstance(graph, ModelGraph) and beside and any(lacking):
        # Model-granularity programs store some weights in a form that layer programs cannot read.
        remedy = "compile it with --set granularity=layer"
        return Generating({"problem": _sentence(model, "programs of layers", remedy)})
    return made


def _problem(planned: Plan, graph: TrainingGraph) -> str | None:
    """Return the reason why there are no generation programs; None if there are."""
    if not planned.config.generate:
        return "it was compiled with generate=false; compile it again without this setting"
    if graph.pad_token is not None:
        return "a masked language model does not generate text"
    if not planned.target.generating_lengths:
        return (
            f"target {planned.target.name} does not generate text: "
            "export what was trained into a bundle for host or android-cpu, or to transformers"
        )
    return None


def _sentence(model: Any, needed: str, remedy: str = _REMEDY) -> str:
    """Return why a model does not generate, for the bundle's notes and error messages."""
    name = type(model).__name__
    return f"{name} can be trained but does not generate text, which takes {needed}: {remedy}"


def _made(planned: Plan, model: Any, graph: TrainingGraph, progress: Progress) -> LayerGraph:
    """Return programs that keep keys and values, or else those that compute all tokens again for each new one.

    The latter hold at most max_length tokens if the model's programs are for one length.

    Raises:
        VerifyError: the model's layers can be written in neither way.
    """
    from zoexport.ir.graphs import copy_graph
    from zoexport.ir.lengths import FixedLength
    from zoexport.methods.split import decoding_passes, recomputing_passes

    length, context = _captured_length(planned, model, graph)
    lengths = [one for one in planned.target.generating_lengths if one <= context]
    cached = partial(decoding_passes, context=context, lengths=lengths)
    captured = _captured(planned, model, graph, length, context, progress)
    try:
        return _split(planned, model, copy_graph(captured), cached, progress)
    except VerifyError as error:
        _LOG.debug("no programs with caches: %s", error)
    if graph.any_length:
        with contextlib.suppress(FixedLength):
            recomputing = partial(recomputing_passes, context=context)
            return _split(planned, model, captured, recomputing, progress)
    shorter = min(context, graph.max_length)
    captured = _captured(planned, model, graph, shorter, shorter, progress)
    captured.any_length = False
    recomputing = partial(recomputing_passes, context=shorter)
    return _split(planned, model, captured, recomputing, progress)


def _captured(
    planned: Plan,
    model: Any,
    graph: TrainingGraph,
    length: int,
    context: int,
    progress: Progress,
) -> ModelGraph:
    """Capture a model to generate.

    Args:
        graph: graph of the training programs; shares weights, sparse indices and quantization with
            it.
        length, context: tokens to capture, which mark sizes, and at most in a prompt with its completion.

    Raises:
        VerifyError: the model takes no rows of so many tokens.
    """
    from zoexport.compiler.graphs import captured as capture

    try:
        captured = capture(planned, model, length, progress, max_length=context)
    except ModelError as error:
        raise VerifyError(
            error.where, found=error.found, expected=f"rows of {context} tokens", fix=error.fix
        ) from error
    captured.source = graph.source
    captured.chosen = None if graph.chosen is None else dict(graph.chosen)
    captured.measured, captured.unquantized = graph.measured, graph.unquantized
    captured.any_length = True
    return captured


def _split(
    planned: Plan,
    model: Any,
    captured: ModelGraph,
    passes: Callable[[TrainingSettings, list[str]], list[Pass]],
    progress: Progress,
) -> LayerGraph:
    """Make programs of a captured model's layers that generate.

    Args:
        passes: returns the rewrites, given settings and modules to train.

    Raises:
        VerifyError: the model's layers cannot be written in this way.
    """
    from zoexport import models
    from zoexport.passes.find_linears import linear_weights
    from zoexport.passes.pipeline import run_passes

    config = planned.config
    # These programs run on the CPU, even if the target quantizes the weights of its own programs.
    own = with_values(planned.target.programs_config(config), {"weights": config.weights})
    modules = models.adapter_targets(model, *own.modules, linear_weights(captured), own.ranks)
    made = run_passes(captured, passes(own, modules), progress)
    assert isinstance(made, LayerGraph)
    made.max_labels = made.max_length
    made.programs = {
        f"{PREFIX}{name}": dataclasses.replace(program, name=f"{PREFIX}{name}")
        for name, program in made.programs.items()
    }
    return made


def _captured_length(planned: Plan, model: Any, graph: TrainingGraph) -> tuple[int, int]:
    """Return the length to capture and the context, both limited by the positions of the model.

    The length is a prime that marks sizes (``ir.lengths``): at least the context, or the longest
    the model supports.

    Raises:
        VerifyError: the model has too few positions.
    """
    from zoexport.ir.capture import capture_limit, position_limit
    from zoexport.ir.lengths import marker_prime
    from zoexport.trained import sizes_of

    sizes = sizes_of(planned.config, model, graph.chosen)
    limit = position_limit(model)
    least = planned.config.generate_context
    if limit is not None:
        least = min(least, limit)
    length = marker_prime(least, sizes, capture_limit(model))
    while length is None and least > 16:
        least -= 1
        length = marker_prime(least, sizes, capture_limit(model))
    if length is None:
        raise VerifyError(
            "model",
            found=f"{limit} positions",
            expected="at least 16 positions",
            fix=_REMEDY,
        )
    return length, least
