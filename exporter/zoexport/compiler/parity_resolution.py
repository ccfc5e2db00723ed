"""Resolution: the smallest difference of two losses that the arithmetic of a bundle resolves.

A projected gradient is a difference of two losses that nearly cancel. What is left of it is compared with the
reference's up to the roundings that the bundle's arithmetic cannot avoid. These are measured and not assumed: the
reference evaluates each loss a second time with that arithmetic in place of its own.
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
"""The largest value rounded: beyond are the numbers that masks put in place of scores."""
_UNIT = 2.0**-24
"""Half the distance of 1 to the next float32."""

STEPS = 2
"""Steps in which the resolution is measured: the batches of parity differ between even and odd ones alone."""
_DEVIATIONS = 6.0
"""Standard deviations of a difference's error. The HTP's errors of gradients were 2.2 times those of rounding each
result once (``core.tolerances``), so these are 2.7 of its own: three in a thousand differences would be further off.
What they are off by beyond this is compared with the bound of the difference."""


class MeasuredModel(AdaptedModel):
    """An adapted model that evaluates each loss twice, the second time as ``arithmetic`` computes.

    Attributes:
        losses: of every evaluation since the last :meth:`take`, both.
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
        """The loss of one example, see :class:`AdaptedModel`."""
        found = super().loss(example, config, added, reference)
        with computing(self.arithmetic):
            again = super().loss(example, config, added, reference)
        self.losses.append((float(found), float(again)))
        return found

    def take(self, examples: int) -> float:
        """The smallest difference of two mean losses over ``examples`` that counts, from the evaluations so far.

        Errors that all perturbed copies of an example share cancel in differences. The rest, whose standard deviation
        is s over copies and examples, leaves a difference of two means with one of s sqrt(2 / examples). A loss is a
        float32 number in the end, whatever it was computed with.
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
    """The measuring model of a zeroth-order reference, while inside; the reference has its own again afterwards."""
    own = reference.adapted
    reference.adapted = model = MeasuredModel(own, arithmetic)
    try:
        yield model
    finally:
        reference.adapted = own


def computing(arithmetic: tolerances.Arithmetic) -> TorchDispatchMode:
    """A context in which float32 operations of torch compute otherwise than in float32.

    ``float32``: matrix products are exact but for one rounding of the result, so that what differs from the plain
    context are the roundings of sums. ``float16``: every operand and result is rounded to 11 bits. ``unrounded``:
    nothing is rounded to a grid of integers or to bfloat16, so that what differs is all that such grids do.
    """
    return _Mode(_COMPUTE[arithmetic])


_Compute = Callable[[Any, Any, Any], Any]


class _Mode(TorchDispatchMode):
    def __init__(self, compute: _Compute) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.compute = compute

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A view shares its source's values, and what is written in place keeps them: both hold what was rounded before.
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
    """To 11 bits, by Veltkamp's splitting; the range stays, as squares in norms leave that of fp16 nowhere else."""
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
