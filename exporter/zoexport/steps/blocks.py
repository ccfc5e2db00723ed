"""blocks: the stages of a split model become two blocks, each with directions of its own (FedSPZO 3.2.2, equation 2).

Before, the stages::

    embedding, layers.0, layers.1, layers.2, head

After, for a first block of two layers, the same stages, and where the second block begins::

    embedding, layers.0, layers.1 | layers.2, head
"""

from __future__ import annotations

from collections.abc import Callable

from zoexport.core.errors import ConfigError
from zoexport.core.step_plan import ProbeLevel, StepPlan
from zoexport.core.types import Pass, TrainingGraph


def blocks(
    cut: str,
    first_layers: Callable[[int], int],
    perturbations: tuple[int, int],
    difference: str = "central",
) -> Pass:
    """The plan of two nested levels.

    Args:
        cut: the setting ``split``, for messages.
        first_layers: of how many layers there are, how many the first block has.
        perturbations: P1 directions of the first block; P2 of the second for each of its probes.
        difference: of both, see :class:`ProbeLevel`.
    """
    return Pass(
        "blocks",
        lambda graph: _planned(graph, cut, first_layers, perturbations, difference),
        "counts stages, and what is trained in them",
    )


def _planned(
    graph: TrainingGraph,
    cut: str,
    first_layers: Callable[[int], int],
    perturbations: tuple[int, int],
    difference: str,
) -> TrainingGraph:
    """State the plan.

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
                fix="Cut elsewhere (split=layer:K), adapt other layers (lora.targets, lora.layers), or train the "
                "weights themselves (train=full).",
            )
    levels = zip((0, begin), perturbations, strict=True)
    graph.step = StepPlan(tuple(ProbeLevel(*level, difference) for level in levels))
    return graph
