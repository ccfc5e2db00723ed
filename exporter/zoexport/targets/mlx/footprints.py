"""Estimates of a program's peak memory in MLX, which does no memory planning (``ir.liveness``)."""

from __future__ import annotations

import dataclasses

from torch.fx import Node

from zoexport.core.graph import Program
from zoexport.core.target import Footprint
from zoexport.ir.graphs import is_call, operand, shape_of, zo
from zoexport.ir.liveness import live_footprint, tensor_bytes
from zoexport.targets.mlx.packing import GROUPS, panels

_AHEAD = 10
"""Calls that MLX starts before an earlier one has ended, with room for their results: its MAX_ACTIVE_TASKS."""
_OWN = 1_000_000
"""Bytes that MLX itself takes; measured."""
_INT4 = (zo.linear_int4, zo.linear_int4_input_gradient, zo.embedding_int4)
_INT8 = (zo.linear_int8, zo.linear_int8_input_gradient)
_GRIDS = (zo.grid_linear_int4, zo.grid_linear_int8)
_PERTURBED = 80
"""Bytes for each integer that is perturbed at a time: its word, the level, the values of both copies; measured."""


def footprint(program: Program) -> Footprint:
    """Return the footprint of a program whose sizes are numbers."""
    found = live_footprint(program, ahead=_AHEAD, within=_within)
    return dataclasses.replace(found, planned=_OWN + found.planned)


def _within(node: Node) -> int:
    """Return a rule's scratch memory in bytes, in addition to arguments and results."""
    if is_call(node, zo.label_gradient):
        return 2 * tensor_bytes(
            operand(node)
        )  # the softmax, and the gradient before it is weighted
    if is_call(node, *_INT4):
        is_lookup = is_call(node, zo.embedding_int4)
        scales = operand(node, 1 if is_lookup else 2)
        # The biases have the same size; both are float32 if the whole weight is read.
        return tensor_bytes(scales) + (0 if is_lookup else 8 * scales.meta["val"].numel())
    if is_call(node, *_GRIDS):
        rows, width = shape_of(operand(node, 1))[0], shape_of(operand(node))[-1]
        return _PERTURBED * width * panels(rows, width)[0].stop
    if is_call(node, *_INT8):
        rows, width = shape_of(operand(node, 1))
        return 8 * rows * (width // GROUPS[-1])
    return 0
