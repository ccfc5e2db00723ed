"""SensZOQ in plain PyTorch, written from the paper (definition 4 with q queries; equations 8 and 20)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from zoexport.methods.adapted import Added
from zoexport.methods.senszoq.config import SenszoqConfig
from zoexport.methods.zeroth_order import ZerothOrderReference

_PLACES = "places."


class SenszoqReference(ZerothOrderReference):
    """Zeroth-order SGD on chosen elements of the linear weights.

    Args:
        model: see :class:`ZerothOrderReference`; its weights are zero at the chosen places.
        config: of the bundle.
        slots: ``sparse.values`` (S) fp16, and in the order in which these stand there, ``places.<parameter>`` int64
            (k): where they belong in that weight, ``row * columns + column``.
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
        """w_sparse x at every layer that has chosen weights (equation 20)."""
        found = {}
        parts = values[self.values_name].split([len(places) for places in self.places.values()])
        for (parameter, places), part in zip(self.places.items(), parts, strict=True):
            sparse = torch.zeros_like(self.adapted.model.get_parameter(parameter))
            sparse.view(-1)[places] = part
            module = parameter.removesuffix(".weight")
            found[module] = lambda x, sparse=sparse: nn.functional.linear(x, sparse)
        return found

    def updated(self, name: str, gradients: Sequence[float], learning_rate: float) -> Tensor:
        """The values after a step, rounded to fp16."""
        return super().updated(name, gradients, learning_rate).half().float()
