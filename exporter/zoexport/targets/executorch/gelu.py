"""GELU by tanh, written out: ``x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`` (Hendrycks and Gimpel, section 2).

XNNPACK's partitioner takes ``aten.gelu`` without its argument ``approximate`` and computes the exact GELU, which is
up to 4.7e-4 away. The HTP's own operator is neither: up to 7.8e-3 off, against 2.6e-3 of the simple ones in fp16.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.fx import Node

from zoexport.ir.graphs import aten


def tanh_gelu(call: Callable[..., Any], x: Node) -> Node:
    """The nodes of it; ``call`` inserts an operator with its arguments."""
    cube = call(aten.mul.Tensor, call(aten.mul.Tensor, x, x), x)
    inner = call(aten.add.Tensor, x, call(aten.mul.Tensor, cube, 0.044715))
    inner = call(aten.mul.Tensor, inner, math.sqrt(2 / math.pi))
    factor = call(aten.add.Tensor, call(aten.tanh.default, inner), 1.0)
    result: Node = call(aten.mul.Tensor, call(aten.mul.Tensor, x, 0.5), factor)
    return result
