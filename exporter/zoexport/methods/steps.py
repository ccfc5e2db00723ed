"""Passes that define what a session evaluates in a step, as a plan in the manifest."""

from __future__ import annotations

from collections.abc import Callable

from zoexport.core.errors import ConfigError
from zoexport.core.graph import LayerGraph
from zoexport.core.step_plan import Copies, ProbeLevel, StepPlan, UpdateRule
from zoexport.core.target import Pass


def spsa(
    queries: int, copies: Copies, difference: str = "central", update: UpdateRule | None = None
) -> Pass:
    """Return the pass for SPSA: each direction perturbs all parameters (MeZO, P-RGE equation 3).

    The plan has ``queries`` directions; for the other arguments see :class:`StepPlan` and
    :class:`ProbeLevel`.
    """
    plan = StepPlan((ProbeLevel(0, queries, difference),), copies, update=update)

    def state(graph: LayerGraph) -> LayerGraph:
        graph.step = plan
        return graph

    return Pass("spsa", state, "states the step of the programs that there are by now")


def one_sided(queries: int, copies: Copies, update: UpdateRule | None = None) -> Pass:
    """Return the pass for FZOO: forward differences along random signs over the losses' deviation.

    The plan has ``queries`` directions and one unperturbed probe; for the other arguments see
    :class:`StepPlan`.
    """
    level = ProbeLevel(0, queries, "forward")
    plan = StepPlan((level,), copies, "rademacher", "deviation", update)

    def state(graph: LayerGraph) -> LayerGraph:
        graph.step = plan
        return graph

    return Pass("one_sided", state, "states the step of the programs that there are by now")


def blocks(
    cut: str,
    first_layers: Callable[[int], int],
    perturbations: tuple[int, int],
    difference: str = "central",
) -> Pass:
    """Return the pass that splits the stages into two blocks (FedSPZO 3.2.2, equation 2).

    Before, the stages::

        embedding, layers.0, layers.1, layers.2, head

    After, for a first block of two layers, the same stages with the beginning of the second block::

        embedding, layers.0, layers.1 | layers.2, head

    Args:
        cut: the setting ``split``, for messages.
        first_layers: maps the number of layers to that of the first block.
        perturbations: P1 directions of the first block; P2 of the second for each of its probes.
        difference: see :class:`ProbeLevel`; for both blocks.
    """
    return Pass(
        "blocks",
        lambda graph: _planned(graph, cut, first_layers, perturbations, difference),
        "counts stages, and what is trained in them",
    )


def _planned(
    graph: LayerGraph,
    cut: str,
    first_layers: Callable[[int], int],
    perturbations: tuple[int, int],
    difference: str,
) -> LayerGraph:
    """Add the plan to the graph.

    Raises:
        ConfigError: no such layer, or a block without anything to train.
    """
    layers = len(graph.stages) - 2
    first = first_layers(layers)
    if not 0 < first <= layers or (first == layers and cut != "head"):
        raise ConfigError(
            f"setting split={cut}",
            found=f"a model of {layers} layers",
            expected=f"head, or layer:K or last:K with K from 1 to {layers - 1}",
            fix="Choose another place to cut the model.",
        )
    begin = first + 1  # the embedding is a stage too
    trainable = {slot.name for slot in graph.slots if slot.role == "trainable"}
    second = trainable & {name for stage in graph.stages[begin:] for name in stage.bind.values()}
    for slots, place in ((trainable - second, "before"), (second, "after")):
        if not slots:
            raise ConfigError(
                f"setting split={cut}",
                found=f"nothing to train {place} it, so that block has no directions to be perturbed along",
                expected="adapters, or weights of its own, in both blocks",
                fix="Cut elsewhere (split=layer:K), adapt other layers (lora.target_modules, "
                "lora.layers_to_transform), or train the weights themselves (train=full).",
            )
    levels = zip((0, begin), perturbations, strict=True)
    graph.step = StepPlan(tuple(ProbeLevel(*level, difference) for level in levels))
    return graph
