"""A model's linear weights: by parameter, not by layer, so that a shared one is there once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zoexport.core.errors import ModelError
from zoexport.models.targets import linear_names

if TYPE_CHECKING:
    from torch import nn

Linears = Mapping[str, "Sequence[nn.Linear]"]
"""The layers that multiply by each linear weight, by the weight's (first) parameter name, in the model's order."""


def linear_weights(model: nn.Module) -> Linears:
    """Return every linear weight but the output head's.

    To be called before a device map is applied: that gives layers new parameters again and again.

    Raises:
        ModelError: there is none.
    """
    found: dict[int, tuple[str, list[nn.Linear]]] = {}
    for path in linear_names(model):
        layer: Any = model.get_submodule(path)
        found.setdefault(id(layer.weight), (f"{path}.weight", []))[1].append(layer)
    if not found:
        raise ModelError(
            f"model {type(model).__name__}",
            found="no linear layer but the output head",
            expected="linear layers, whose weights a mask chooses from",
            fix="Use a model whose layers are linear ones.",
        )
    return dict(found.values())


def shapes(linears: Linears) -> dict[str, tuple[int, int]]:
    """(rows, columns), that is (outputs, inputs), of each linear weight."""
    return {
        name: (int(layers[0].weight.shape[0]), int(layers[0].weight.shape[1]))
        for name, layers in linears.items()
    }
