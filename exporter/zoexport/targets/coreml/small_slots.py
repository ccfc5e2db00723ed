"""scale_small_slots: trained matrices over their norm where gradients of fp16 pass them.

Before::

    b = aten.permute(B, [1, 0])
    d = aten.mm(dy, b)
    dA = aten.mm(x, d)

After, m and what it multiplies in fp32::

    m = aten.clamp(aten.amax(aten.sum(aten.abs(B), [1])), 1e-30)
    b = aten.permute(aten.div(B, m), [1, 0])
    d = aten.mm(dy, b)
    dA = aten.mul(aten.mm(x, d), m)

Why: ``targets.slot_gradients``.
"""

from __future__ import annotations

from zoexport.core.graph import Program
from zoexport.ir.graphs import aten, call
from zoexport.targets.slot_gradients import LEAST, small_products


def scale_small_slots(program: Program) -> None:
    """Rewrite the products of gradients with trained matrices."""
    graph = program.module.graph
    for small in small_products(program):
        with graph.inserting_before(small.turned):
            sums = call(graph, aten.abs.default, small.slot)
            sums = call(graph, aten.sum.dim_IntList, sums, [1])
            norm = call(graph, aten.clamp.default, call(graph, aten.amax.default, sums), LEAST)
            scaled = call(graph, aten.div.Tensor, small.slot, norm)
        small.turned.replace_input_with(small.slot, scaled)
        for product in small.behind:
            readers = list(product.users)
            with graph.inserting_after(product):
                back = call(graph, aten.mul.Tensor, product, norm)
            for reader in readers:
                reader.replace_input_with(product, back)
