"""Which weights matter: squared gradients of every linear weight, and masks of the most sensitive (SensZOQ).

``zoexport sensitivity`` is :func:`make_mask`. For reports, :func:`averaged_squares` gives a model's squared gradients
on a data file, and :func:`coverage` the share of them that a mask covers. docs/masks.md describes the file.
"""

from __future__ import annotations

from zoexport.sensitivity.choose import coverage
from zoexport.sensitivity.config import MaskConfig
from zoexport.sensitivity.linears import Linears, linear_weights, shapes
from zoexport.sensitivity.mapped import MappedTensors
from zoexport.sensitivity.run import averaged_squares, choose_mask, make_mask

__all__ = [
    "Linears",
    "MappedTensors",
    "MaskConfig",
    "averaged_squares",
    "choose_mask",
    "coverage",
    "linear_weights",
    "make_mask",
    "shapes",
]
