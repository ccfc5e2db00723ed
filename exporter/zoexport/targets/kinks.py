"""Programs whose gradients fp16 would make wrong: those with an operator whose slope jumps."""

from __future__ import annotations

from zoexport.core.graph import Program
from zoexport.ir.graphs import aten, is_call

WIDE = "Layers with ReLU compute in fp32: rounding across its kink changes gradients by percents"
"""What a bundle's notes say where only some programs are of fp16."""
_KINKS = (aten.relu, aten.clamp, aten.le, aten.gt)


def has_kink(program: Program) -> bool:
    """Return whether a program or its forward program has a non-differentiable operator."""
    return any(is_call(node, *_KINKS) for node in program.module.graph.nodes)
