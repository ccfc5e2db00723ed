"""SensZOQ in plain PyTorch, written from the paper (definition 4 with q queries; equations 8 and 20)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zoexport.methods.reference.adapted import Added
from zoexport.methods.reference.zeroth_order import ZerothOrderReference
from zoexport.methods.senszoq import SenszoqConfig

_PLACES = "places."


class SenszoqReference(ZerothOrderReference):
    """Zeroth-order SGD on sparse elements of the linear weights.

    Args:
        model: see :class:`ZerothOrderReference`; its weights are zero at the sparse indices.
        config: settings of the bundle.
        slots: ``sparse.values`` (S) fp16, and in the same order ``places.<parameter>`` int64 (k):
            their indices in that weight, ``row * columns + column``.
    """

    def __init__(
        self, model: nn.Module, config: SenszoqConfig, slots: Mapping[str, Tensor]
    ) -> None:
        (values,) = (name for name in slots if not name.startswith(_PLACES))
        super().__init__(model, config, {values: slots[values].float()})
        self.values_name = values
        self.places = {
            name.removeprefix(_PLACES): places
            for name, places in slots.items()
            if name.startswith(_PLACES)
        }

    def added(self, values: Mapping[str, Tensor]) -> Added:
        """Return w_sparse x for every layer with sparse weights (equation 20)."""
        parts = values[self.values_name].split([len(places) for places in self.places.values()])
        found = {}
        for (parameter, places), part in zip(self.places.items(), parts, strict=True):
            module = parameter.removesuffix(".weight")
            found[module] = functools.partial(self._product, module, places, part)
        return found

    def _product(self, module: str, places: Tensor, values: Tensor, x: Tensor) -> Tensor:
        """Build the matrix only for the product: together they are as large as the model."""
        layer: Any = self.adapted.model.get_submodule(module)
        sparse = torch.zeros(layer.out_features, layer.in_features)
        sparse.view(-1)[places] = values
        return nn.functional.linear(x, sparse)

    def updated(self, name: str, gradients: Sequence[float], learning_rate: float) -> Tensor:
        """Return the values after a step, rounded to fp16."""
        return super().updated(name, gradients, learning_rate).half().float()
