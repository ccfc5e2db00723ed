"""Find products of gradients with a trained matrix that may be too small for fp16.

LoRA's second matrix B (rank, out) is zero when training begins, and after the first step as large as the learning rate
times a gradient: some 1e-7, and dy B^T is below fp16's least number (6e-8). Targets that compute in fp16 divide B by
its norm there, and multiply by that behind the next products. The norm is the largest sum of a row's magnitudes, so
that dy B^T is no larger than dy, and no sum leaves fp16's range at its other end::

    b = aten.permute(B, [1, 0])
    d = aten.mm(dy, b)
    dA = aten.mm(x, d)
    dx = aten.mm(d, a)
"""

from __future__ import annotations

import dataclasses

from torch.fx import Node

from zoexport.core.graph import Program
from zoexport.ir.graphs import RESHAPES, aten, is_call, operand, placeholders

LEAST = 1e-30
"""The least that gradients and trained matrices are divided by, which are zero where their largest element is."""

_TRANSPOSES = (aten.permute, aten.t, aten.transpose)


@dataclasses.dataclass(frozen=True)
class SmallProduct:
    """Products of gradients with a trained matrix.

    Attributes:
        slot: the matrix's placeholder, B (rank, out). turned: B^T, which only these products read.
        behind: the products that read ``dy B^T``, each linear in it.
    """

    slot: Node
    turned: Node
    behind: list[Node]


def small_products(program: Program) -> list[SmallProduct]:
    """Return a program's small products; all readers must be products, which scale back."""
    found = []
    nodes = placeholders(program)
    for value in program.inputs:
        if value.role == "state":
            for user in nodes[value.name].users:
                behind = _behind(user) if is_call(user, *_TRANSPOSES) else []
                if behind:
                    found.append(SmallProduct(nodes[value.name], user, behind))
    return found


def _behind(turned: Node) -> list[Node]:
    found = []
    for product in turned.users:
        if not is_call(product, aten.mm) or operand(product, 1) is not turned:
            return []
        pending = list(product.users)
        while pending:
            reader = pending.pop()
            if is_call(reader, *RESHAPES, *_TRANSPOSES):
                pending += reader.users
            elif is_call(reader, aten.mm):
                found.append(reader)
            else:
                return []
    return found
