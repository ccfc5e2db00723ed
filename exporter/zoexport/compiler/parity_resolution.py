"""Resolution: the smallest difference of two losses that the arithmetic of a bundle resolves.

A projected gradient is a difference of two losses that nearly cancel. It is compared with the
reference's up to the rounding errors that the bundle's arithmetic cannot avoid. These are measured,
not assumed: the reference evaluates each loss a second time with that arithmetic instead of its
own.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from zoexport.core import tolerances
from zoexport.core.settings import TrainingSettings
from zoexport.methods.reference.adapted import AdaptedModel, Added

_aten = torch.ops.aten
_PRODUCTS = (_aten.mm, _aten.bmm, _aten.addmm, _aten.baddbmm)
_TO_11_BITS = 2.0**13 + 1
_LARGEST = 1e30
"""Largest value that is rounded; larger ones replace masked scores."""
_UNIT = 2.0**-24
"""Half the distance from 1 to the next float32."""

STEPS = 2
"""Steps that measure the resolution: parity batches differ only between even and odd steps."""
_DEVIATIONS = 6.0
"""Standard deviations of a difference's error. The HTP's errors of gradients were 2.2 times those of rounding each
result once (``core.tolerances``), so these are 2.7 of its own: three in a thousand differences would be further off.
What they are off by beyond this is compared with the bound of the difference."""


class MeasuredModel(AdaptedModel):
    """Adapted model that evaluates each loss twice, the second time with ``arithmetic``.

    Attributes:
        losses: both losses of every evaluation since the last :meth:`take`.
    """

    def __init__(self, model: AdaptedModel, arithmetic: tolerances.Arithmetic) -> None:
        super().__init__(model.model, model.run)
        self.arithmetic = arithmetic
        self.losses: list[tuple[float, float]] = []

    def loss(
        self,
        example: Any,
        config: TrainingSettings,
        added: Added,
        reference: Sequence[Tensor] = (),
    ) -> Tensor:
        """Return the loss of one example, see :class:`AdaptedModel`."""
        found = super().loss(example, config, added, reference)
        with computing(self.arithmetic):
            again = super().loss(example, config, added, reference)
        self.losses.append((float(found), float(again)))
        return found

    def take(self, examples: int) -> float:
        """Return the smallest resolved difference of two mean losses over ``examples``.

        It is computed from the evaluations since the last call.

        Errors that all perturbed copies of an example share cancel in differences. The remaining
        errors have a standard deviation s over copies and examples, so a difference of two means
        has s sqrt(2 / examples). The final loss is always a float32 number.
        """
        values = np.array(self.losses).reshape(-1, examples, 2)
        self.losses.clear()
        errors = values[..., 1] - values[..., 0]
        own = errors - errors.mean(axis=0, keepdims=True)
        freedom = errors.size - examples
        deviation = math.sqrt(float((own**2).sum()) / freedom) if freedom else 0.0
        largest = float(np.abs(values[..., 0].mean(axis=1)).max())
        return _DEVIATIONS * deviation * math.sqrt(2 / examples) + 4 * _UNIT * largest


@contextlib.contextmanager
def measured(reference: Any, arithmetic: tolerances.Arithmetic) -> Any:
    """Give a zeroth-order reference a measuring model inside the context and yield it."""
    own = reference.adapted
    reference.adapted = model = MeasuredModel(own, arithmetic)
    try:
        yield model
    finally:
        reference.adapted = own


def computing(arithmetic: tolerances.Arithmetic) -> TorchDispatchMode:
    """Return a context in which float32 operations of torch use other arithmetic.

    ``float32``: matrix products are exact except for one rounding of the result, which shows the
    rounding errors of sums. ``float16``: every operand and result is rounded to 11 bits.
    ``unrounded``: nothing is rounded to integers or to bfloat16, which shows the whole effect of
    such rounding.
    """
    return _Mode(_COMPUTE[arithmetic])


_Compute = Callable[[Any, Any, Any], Any]


class _Mode(TorchDispatchMode):
    def __init__(self, compute: _Compute) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.compute = compute

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Views and in-place results contain values that were already rounded.
        if func.is_view or (func._schema.is_mutable and func.overloadpacket is not _aten.round_):
            return func(*args, **(kwargs or {}))
        return self.compute(func, args, kwargs or {})


def _of_float32(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    def changed(tensor: Tensor) -> Tensor:
        return change(tensor) if tensor.dtype == torch.float32 else tensor

    return tree_map_only(Tensor, changed, tree)


def _exact_products(func: Any, args: Any, kwargs: Any) -> Any:
    if func.overloadpacket not in _PRODUCTS:
        return func(*args, **kwargs)
    return func(*_of_float32(Tensor.double, args), **kwargs).float()


def _half(tensor: Tensor) -> Tensor:
    """Round to 11 bits by Veltkamp's splitting.

    The range stays, as squares in norms exceed that of fp16.
    """
    shifted = tensor * _TO_11_BITS
    return torch.where(tensor.abs() < _LARGEST, shifted - (shifted - tensor), tensor)


def _in_half(func: Any, args: Any, kwargs: Any) -> Any:
    return _of_float32(_half, func(*_of_float32(_half, args), **kwargs))


def _unrounded(func: Any, args: Any, kwargs: Any) -> Any:
    to_bf16 = func.overloadpacket is _aten._to_copy and kwargs.get("dtype") is torch.bfloat16
    if to_bf16 or func.overloadpacket in (_aten.round, _aten.round_):
        return args[0]
    return func(*args, **kwargs)


_COMPUTE: dict[tolerances.Arithmetic, _Compute] = {
    "float32": _exact_products,
    "float16": _in_half,
    "unrounded": _unrounded,
}
