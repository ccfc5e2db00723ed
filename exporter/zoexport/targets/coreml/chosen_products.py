"""write_chosen_products: products with chosen weights in torch's operators, where programs hold weights as constants.

Before, for any layer of one shape, with all chosen weights of the model and the range of the layer's own::

    y' = zoexport.sparse_add_mm_given(y, x, values, places, range, epsilon, noise, most)

After, for m of the layer's chosen weights at a time::

    v  = aten.index_select(values, 0, entries)                       # (m)
    z  = epsilon * aten.index_select(noise, 1, entries)              # (q, m)
    w  = [v + z[0], v - z[0], v + z[1], ...] * inside                # (2q, 1, m)
    y' = aten.index_add(y, 2, rows, aten.index_select(x, 2, columns) * w)      # y (2q, R, N), x (2q, R, K)

Without epsilon and noise there is one copy, and w = v * inside.

``entries``, ``rows`` and ``columns`` (int64) and ``inside`` (float32, 1 or 0) are weights (m) made of the range and the
places; each stage binds its own. A layer with fewer weights than another of its shape adds zeros.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch.fx import Node

from zoexport.core.graph import LayerGraph, Program, Stage
from zoexport.ir.graphs import (
    arguments,
    aten,
    call,
    placeholders,
    remove_unused_weights,
    shape_of,
    weight_input,
    zo,
)
from zoexport.ir.rewrite import reshaped, rewrite

_TOGETHER = 1024
"""Chosen weights whose products are held at a time."""


def write_chosen_products(graph: LayerGraph) -> None:
    """Rewrite the programs of stages, whose noise is an input; sizes are numbers. Stages bind the new weights."""
    replaced: list[tuple[Stage, set[str]]] = []
    for program in graph.programs.values():
        stages = graph.stages_of(program)
        rules = _Products(graph, program, stages)
        rewrite(program, [((zo.sparse_add_mm_given,), rules.of)])
        remove_unused_weights(program)
        replaced += [(stage, rules.replaced) for stage in stages]
    # Programs of other lengths read the same places.
    for stage, names in replaced:
        for name in names:
            stage.bind.pop(name, None)


@dataclasses.dataclass
class _Products:
    """Writes the products of one program, which ``stages`` run.

    Attributes:
        replaced: the names of the inputs whose place the new weights take.
    """

    graph: LayerGraph
    program: Program
    stages: list[Stage]
    replaced: set[str] = dataclasses.field(default_factory=set)

    def of(self, node: Node) -> Node:
        """Return the node in the place of a product."""
        y, x, values, places, span, epsilon, noise, _ = arguments(node)
        perturbed = epsilon is not None and noise is not None
        names = {placed: name for name, placed in placeholders(self.program).items()}
        self.replaced |= {names[places], names[span]}
        copies = 2 * shape_of(noise)[0] if perturbed else 1
        width, columns = shape_of(x)[-1], shape_of(y)[-1]
        count = math.prod(shape_of(y)[:-1]) // copies
        rows = reshaped(x, [copies, count, width])
        total = reshaped(y, [copies, count, columns])
        for first in range(0, self._most(names[span]), _TOGETHER):
            entries, to, at, inside = self._constants(names[places], names[span], first, width)
            value = self._call(aten.index_select.default, values, 0, entries)
            value = self._call(aten.to.dtype, value, torch.float32)
            if perturbed:
                chosen = self._call(aten.index_select.default, noise, 1, entries)
                move = self._call(aten.mul.Tensor, epsilon, chosen)
                plus = self._call(aten.add.Tensor, value, move)
                minus = self._call(aten.sub.Tensor, value, move)
                value = self._call(aten.stack.default, [plus, minus], 1)
            weights = self._call(aten.mul.Tensor, value, inside)
            weights = reshaped(weights, [copies, 1, shape_of(entries)[0]])
            given = self._call(aten.index_select.default, rows, 2, at)
            terms = self._call(aten.mul.Tensor, given, weights)
            total = self._call(aten.index_add.default, total, 2, to, terms)
        return reshaped(total, shape_of(y))

    def _most(self, span: str) -> int:
        """The most chosen weights that a stage has there, and at least one: an empty constant is none."""
        ranges = [self.graph.weights[stage.bind[span]].tolist() for stage in self.stages]
        return max([1, *(end - begin for begin, end in ranges)])

    def _constants(self, places: str, span: str, first: int, width: int) -> list[Node]:
        """entries, rows, columns and inside, of at most :data:`_TOGETHER` chosen weights from ``first`` on."""
        last = min(first + _TOGETHER, self._most(span))
        made: dict[str, torch.Tensor] = {}
        for stage in self.stages:
            owner = stage.bind[span]
            begin, end = self.graph.weights[owner].tolist()
            every = self.graph.weights[stage.bind[places]]
            found = constants_of(every, range(begin + first, begin + last), end, width)
            made = {f"{part}.{first}": tensor for part, tensor in found.items()}
            for part, tensor in made.items():
                self.graph.weights[f"{owner}.{part}"] = tensor
                stage.bind[f"{span}.{part}"] = f"{owner}.{part}"
        return [
            weight_input(self.program, f"{span}.{part}", tensor) for part, tensor in made.items()
        ]

    def _call(self, operator: object, *args: object) -> Node:
        return call(self.program.module.graph, operator, *args)


def constants_of(
    places: torch.Tensor, entries: range, end: int, width: int
) -> dict[str, torch.Tensor]:
    """Return a product's constants for the sparse weights ``entries``; the layer's end at ``end``.

    Args:
        places: int32 (S), ``row * width + column`` of each sparse weight in its matrix.
        entries: range of sparse weights, of any length.
        end: exclusive end of the layer's sparse weights.
        width: columns of the layer's matrix.

    Returns:
        ``entries``, ``rows`` and ``columns``, int64, and ``inside``, float32, in this order and of
        equal length. Weights outside the layer have ``inside`` 0 and valid indices.
    """
    numbers = torch.arange(entries.start, entries.stop)
    inside = numbers < end
    numbers = torch.where(inside, numbers, 0)
    place = torch.where(inside, places[numbers].long(), 0)
    return {
        "entries": numbers,
        "rows": place // width,
        "columns": place % width,
        "inside": inside.float(),
    }
