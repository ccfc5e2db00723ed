"""split_blocks: the stages of a split model become two blocks (FedSPZO equation 2).

Before, the stages::

    embedding, layers.0, layers.1, layers.2, head

After, for a first block of two layers, the same stages, and where the second block begins::

    embedding, layers.0, layers.1 | layers.2, head
"""

from __future__ import annotations

from collections.abc import Callable

from zoexport.core.errors import ConfigError
from zoexport.core.types import Blocks, TrainingGraph


def split_blocks(
    graph: TrainingGraph,
    split: str,
    first_layers: Callable[[int], int],
    perturbations: tuple[int, int],
) -> TrainingGraph:
    """Fill ``graph.blocks``.

    Args:
        graph: with stages, and what is trained.
        split: the setting, for messages.
        first_layers: of how many layers there are, how many the first block has.
        perturbations: P1 and P2.

    Raises:
        ConfigError: no such layer, or a block without anything to train.
    """
    layers = len(graph.stages) - 2
    first = first_layers(layers)
    if not 0 < first <= layers or (first == layers and split != "head"):
        raise ConfigError(
            f"setting split={split}",
            found=f"a model of {layers} layers",
            expected=f"head, or layer:K or last:K with K from 1 to {layers - 1}",
            fix="Choose another place to split the model.",
        )
    blocks = Blocks(first + 1, perturbations)
    trainable = {slot.name for slot in graph.slots if slot.role == "trainable"}
    second = trainable & {
        name for stage in graph.stages[blocks.second :] for name in stage.bind.values()
    }
    for slots, place in ((trainable - second, "before"), (second, "after")):
        if not slots:
            raise ConfigError(
                f"setting split={split}",
                found=f"nothing to train {place} it, so that block has no directions to be perturbed along",
                expected="adapters, or weights of its own, in both blocks",
                fix="Split elsewhere (split=layer:K), adapt other layers (lora.targets, lora.layers), or train the "
                "weights themselves (train=full).",
            )
    graph.blocks = blocks
    return graph
