"""choose_sizes: programs of a split graph for the rows and lengths that a session calls.

Before, captured at 13 rows of 257 tokens (primes that mark sizes, see ``ir.lengths``)::

    layer.0(hidden (13, 257, 64)) -> hidden (13, 257, 64)
    head(hidden (13, 257, 64)) -> logits (13, 257, 320)

After, for 1 row, lengths 64 and 128, and 32 label rows::

    layer.0@64(hidden (1, 64, 64)) -> hidden (1, 64, 64)
    layer.0@128(hidden (1, 128, 64)) -> hidden (1, 128, 64)
    head(hidden (32, 64)) -> logits (32, 320)

The output head sees label positions alone, from any rows. Refused: a head in which rows see each
other or their place.
"""

from __future__ import annotations

import dataclasses

import torch
from torch.fx import Node

from zoexport.core.errors import VerifyError
from zoexport.core.graph import LayerGraph, Program
from zoexport.ir.graphs import (
    QUANTIZED_LINEARS,
    RESHAPES,
    aten,
    call,
    copy_program,
    described,
    is_call,
    operand,
    output_node,
    outputs,
    placeholders,
    shape_of,
    zo,
)
from zoexport.ir.lengths import set_length, set_rows
from zoexport.ir.shapes import record_shapes
from zoexport.passes.split_layers import HEAD

_PRODUCTS = (aten.linear, zo.rotate_rows, *QUANTIZED_LINEARS)
_OVER_THE_LAST = (aten.mean, aten.layer_norm, aten.rms_norm, aten.amax, aten.softmax)


def choose_sizes(
    graph: LayerGraph, *, rows: int, lengths: list[int], label_rows: int
) -> LayerGraph:
    """Replace each program by its sized ones.

    Args:
        rows: sequences in one call, those of all copies. lengths: tokens of a row, ascending; the last is the longest.
        label_rows: label entries in one call of the output head.
    """
    captured = (graph.rows, graph.length)
    programs: dict[str, Program] = {}
    for family, program in graph.programs.items():
        if family == HEAD:
            programs[family] = made = copy_program(program, family)
            rows_alone(made, label_rows)
            continue
        for length in lengths:
            made = copy_program(program, f"{family}@{length}")
            # Rows first: a wanted length may be a multiple of the captured rows.
            set_rows(made, captured[0], rows)
            if captured[1] != length:
                set_length(made, captured[1], length)
            programs[made.name] = dataclasses.replace(made, length=length)
    for program in programs.values():
        record_shapes(program)
    graph.programs = programs
    graph.rows, graph.length = rows, lengths[-1]
    graph.lengths, graph.label_rows = list(lengths), label_rows
    graph.max_labels = rows // graph.copies * lengths[-1]
    return graph


def rows_alone(program: Program, count: int) -> None:
    """Change an output head from (sequences, positions, width) to rows (count, width).

    Sizes that follow the sequences are found by data flow: a graph captured at its only length may
    have weights whose sizes are multiples of that length.

    Raises:
        VerifyError: a row's result depends on other rows, or on the row's place.
    """
    for node in _rows_alone(program):
        if is_call(node, *RESHAPES):
            node.update_arg(1, [1, count, *shape_of(node)[2:]])
    for values in (program.inputs, program.outputs):
        values[:] = [
            dataclasses.replace(value, shape=(1, count, *value.shape[2:]))
            if _has_rows(value.role)
            else value
            for value in values
        ]
    _without_batch(program)


def _without_batch(program: Program) -> None:
    """Drop the batch dimension: take and return (n, width) instead of (1, n, width)."""
    nodes = program.module.graph
    record_shapes(program)
    ends = {value.name for value in (*program.inputs, *program.outputs) if _has_rows(value.role)}
    for value, node in zip(program.inputs, placeholders(program).values(), strict=True):
        if value.name in ends:
            readers = list(node.users)
            node.meta["val"] = node.meta["val"][0]
            with nodes.inserting_before(readers[0]):
                batched = call(nodes, aten.reshape.default, node, list(value.shape))
            for reader in readers:
                reader.replace_input_with(node, batched)
    output = output_node(program.module)
    (returned,) = outputs(program).values()
    with nodes.inserting_before(output):
        flat = call(nodes, aten.reshape.default, returned, list(shape_of(returned)[1:]))
    output.args = ((flat,),)
    for values in (program.inputs, program.outputs):
        values[:] = [
            dataclasses.replace(value, shape=value.shape[1:]) if value.name in ends else value
            for value in values
        ]


def _has_rows(role: str) -> bool:
    return role in ("activation", "logits")


def _rows_alone(program: Program) -> list[Node]:
    """The nodes of a head that compute rows, each of one row alone; a head that has others is refused."""
    found = []
    rows = {
        node
        for value, node in zip(program.inputs, placeholders(program).values(), strict=True)
        if _has_rows(value.role)
    }
    for node in program.module.graph.nodes:
        if node.op != "call_function" or not rows.intersection(node.all_input_nodes):
            continue
        if not _each_row_alone(node, rows):
            raise VerifyError(
                f"[choose_sizes] {described(node)}",
                found="rows that see each other, or their place, after the last layer",
                expected="an output head that treats each position alone",
                fix="Report the model's architecture.",
            )
        rows.add(node)
        found.append(node)
    return found


def _each_row_alone(node: Node, rows: set[Node]) -> bool:
    width = len(shape_of(node)) - 1
    if is_call(node, *RESHAPES):
        return shape_of(operand(node))[:2] == shape_of(node)[:2]
    if is_call(node, *_PRODUCTS, aten.matmul):
        return operand(node) in rows and not rows.intersection(node.all_input_nodes[1:])
    if is_call(node, *_OVER_THE_LAST):
        axes = node.args[1] if not is_call(node, aten.layer_norm, aten.rms_norm) else [-1]
        return axes in (-1, width, [-1], [width])
    others = [shape_of(arg) for arg in node.all_input_nodes if arg not in rows]
    small = all(set(shape[:-1]) <= {1} for shape in others)
    pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    return small and (pointwise or is_call(node, aten.to, aten._to_copy, aten.clone))
