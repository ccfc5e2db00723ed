"""Gradients of any size, scaled into the range of fp16.

``scale_gradients``. Gradients of a mean loss are small: at some thousand labels and layers they leave the range of
fp16 (6e-8 and up). A backward program is linear in what it is given, so it is given dy / s and its results are
multiplied by s, both on the CPU in float32, with s the largest element of dy. Before::

    dx, dA = backward(h, A, B, dy)

After::

    s = zoexport.rows_1([zoexport.rows_1([dy], <abs, max>)], <max>)
    dx', dA' = backward(h, A, B, zoexport.rows_1([dy, s], <div>))
    dx, dA = zoexport.rows_1([dx', s], <mul>), zoexport.rows_1([dA', s], <mul>)

The head's backward program does so with the gradient of its logits. Nothing has to be passed from stage to stage, and
no factor has to be chosen for a model.

``scale_small_slots``. A trained matrix B that a gradient is multiplied by is divided by its norm m in the same way
(why, and which norm: ``targets.slot_gradients``). Before, after ``scale_gradients``::

    d = dy @ B^T;   dA = zoexport.rows_1([x @ d, s], <mul>);   dx = ... + d @ A^T

After::

    m = zoexport.rows_1([zoexport.rows_1([B], <abs, sum>)], <max>)
    d = dy @ zoexport.rows_1([B, m], <div>)^T
    dA = zoexport.rows_1([zoexport.rows_1([x @ d, s], <mul>), m], <mul>);   dx = ... + d @ A^T * m
"""

from __future__ import annotations

import math

from torch.fx import Graph, Node

from zoexport.core.graph import Program
from zoexport.ir.graphs import aten, call, is_call, output_node, outputs, placeholders, shape_of, zo
from zoexport.ir.row_ops import Op, Read, RowProgram
from zoexport.targets.slot_gradients import LEAST, small_products


def scale_gradients(program: Program) -> None:
    """Rewrite a backward program, whose recorded shapes are numbers, to scale what it is given and gives."""
    nodes = program.module.graph
    given = _given(program)
    order = {node: number for number, node in enumerate(nodes.nodes)}
    with nodes.inserting_before(max(given, key=order.__getitem__).next):
        scale = _largest(nodes, given, Op.MAXIMUM)
        for node in given:
            readers = [user for user in node.users if user in order]
            scaled = _by_scale(nodes, Op.DIV, node, scale)
            for reader in readers:
                reader.replace_input_with(node, scaled)
    result = output_node(program.module)
    returned = outputs(program)
    with nodes.inserting_before(result):
        found = [
            _by_scale(nodes, Op.MUL, node, scale) if value.role.endswith("_gradient") else node
            for value, node in zip(program.outputs, returned.values(), strict=True)
        ]
    result.args = (tuple(found),)


def scale_small_slots(program: Program) -> None:
    """Rewrite the products of gradients with trained matrices in a program of :func:`scale_gradients`."""
    nodes = program.module.graph
    for small in small_products(program):
        with nodes.inserting_before(small.turned):
            norm = _largest(nodes, [small.slot], Op.SUM)
            scaled = _by_scale(nodes, Op.DIV, small.slot, norm)
        small.turned.replace_input_with(small.slot, scaled)
        for product in small.behind:
            readers = list(product.users)
            returned = all(is_call(reader, zo.rows_1) for reader in readers)
            for place in readers if returned else [product]:
                others = list(place.users)
                with nodes.inserting_after(place):
                    if returned:
                        back = _by_scale(nodes, Op.MUL, place, norm)
                    else:
                        back = call(nodes, aten.mul.Tensor, place, norm)
                for other in others:
                    other.replace_input_with(place, back)


def _given(program: Program) -> list[Node]:
    """Return the gradients that all results are linear in: inputs, or the logits' gradient."""
    inputs = zip(program.inputs, placeholders(program).values(), strict=True)
    found = [node for value, node in inputs if value.role == "output_gradient"]
    if found:
        return found
    return [
        part
        for node in program.module.graph.nodes
        if is_call(node, zo.label_gradient)
        for part in node.users
        if part.args[1] == 2
    ]


def _largest(nodes: Graph, given: list[Node], of_row: Op) -> Node:
    """The largest of what ``of_row`` makes of the magnitudes of each row of all values, at least LEAST: (1, 1)."""
    count = len(given)
    largest = []
    whole = RowProgram((1,), constants=[LEAST])
    for number, node in enumerate(given):
        *lead, width = shape_of(node)
        rows = math.prod(lead)
        of_rows = RowProgram((rows,), [Read(width, 0, (width,))], [width, width, 1], [2])
        of_rows.code = [(Op.ABS, 1, 0, 0, 0), (of_row, 2, 1, 0, 0)]
        largest.append(_rows(nodes, [node], of_rows))
        whole.reads.append(Read(rows, 0, (0,)))
        whole.widths.append(rows)
        # Registers: what is read, the largest of each, and the largest so far.
        whole.code.append((Op.MAXIMUM, count + 2 * number, number, 0, 0))
        before = count + 2 * number - 1 if number else -1
        whole.code.append((Op.MAX, count + 2 * number + 1, count + 2 * number, before, 0))
    whole.widths += [1] * (2 * count)
    whole.outputs = [3 * count - 1]
    return _rows(nodes, largest, whole)


def _by_scale(nodes: Graph, op: Op, node: Node, scale: Node) -> Node:
    """``node`` divided by the scale or multiplied by it, in its own shape: a view after it would be a delegate."""
    *lead, width = shape_of(node)
    strides = [math.prod(shape_of(node)[axis + 1 :]) for axis in range(len(lead))]
    reads = [Read(width, 0, tuple(strides)), Read(1, 0, (0,) * len(lead))]
    program = RowProgram(tuple(lead), reads, [width, 1, width], [2], [(op, 2, 0, 1, 0)])
    return _rows(nodes, [node, scale], program)


def _rows(nodes: Graph, inputs: list[Node], program: RowProgram) -> Node:
    return call(nodes, zo.rows_1.default, inputs, program.encoded(), program.constants)
