"""Footprints: what lowered programs take, from their graphs alone.

Programs are fused and planned as they are when they are lowered: the same bytes as in the program file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch.fx import Node

from zoexport.core.graph import Program
from zoexport.core.target import Footprint
from zoexport.ir.graphs import (
    INPUT_GRADIENTS,
    QUANTIZED_LINEARS,
    ROUTED_LINEARS,
    aten,
    is_call,
    operand,
    shape_of,
    zo,
)
from zoexport.targets.executorch.emit import Layout, planned_bytes
from zoexport.targets.executorch.lower_stages import lowered_program

# A panel of B and rows of A, in runtime_ops/kernels/products.cpp.
_PANEL_WIDTH, _MOST_ROWS, _MOST_DEPTH = 32, 280, 384
# Tiled products, which store a number as three 16-bit parts.
_TILE_ROWS, _TILE_DEPTH, _MOST_TILED_ROWS, _TILED_BYTES = 16, 32, 256, 6
# Queries and keys of a tile, in runtime_ops/kernels/attention.cpp.
_QUERIES, _KEYS, _TILE = 128, 128, 128
_TILE_FLOATS = 1 << 14
_OF_SEVERAL = (zo.rounded_linears_2, zo.rounded_linears_3)
_ROUNDED = (zo.rounded_linear, *_OF_SEVERAL)
_ROUNDED_PANEL = 16 * 36
"""Bytes of a group of 32 inputs in the panels of runtime_ops/kernels/rounded.h: of 16 columns, codes and a scale."""
_INT4_AND_INT8 = (
    zo.grid_linear_int4,
    zo.grid_linear_int8,
    *QUANTIZED_LINEARS,
    *_OF_SEVERAL,
    *INPUT_GRADIENTS,
)
_OF_TENSORS = (zo.matmul, zo.add_matmul)
_PRODUCTS = (
    *(aten.linear, aten.mm, aten.bmm, aten.matmul),
    *_OF_TENSORS,
    *_INT4_AND_INT8,
    *ROUTED_LINEARS,
)
# runtime_ops/bindings/executorch_routed_ops.cpp: rows of an expert that are gathered at a time.
_GATHERED_ROWS = 256
_LABELS = (
    zo.linear_label_logprobs,
    zo.linear_label_logprobs_int4,
    zo.rounded_linear_label_logprobs_int4,
)
# runtime_ops/kernels/linear_label_logprobs.cpp: logits per thread, a sum per row and column block.
_LABEL_ROWS, _LABEL_COLUMNS, _LOGIT_SUM = 64, 1024, 16
_ATTENTION = (zo.attention, zo.attention_gradient)
_LOOKUPS = (aten.embedding, zo.embedding_int4)


def footprint(program: Program) -> Footprint:
    """Return the footprint of a program, whose inputs and outputs are in the caller's memory."""
    fused = lowered_program(program)
    nodes = list(fused.module.graph.nodes)
    labels = [node for node in nodes if is_call(node, *_LABELS)]
    return Footprint(
        planned_bytes(fused) + _rounded(nodes) + _gathered(nodes) + sum(map(_of_labels, labels)),
        # A thread keeps separate scratch memory for products and for attention.
        max((_scratch(node) for node in nodes if is_call(node, *_PRODUCTS)), default=0)
        + sum(
            max((_tiles(node) for node in nodes if is_call(node, kind)), default=0)
            for kind in _ATTENTION
        )
        + (4 * _LABEL_ROWS * _LABEL_COLUMNS if labels else 0),
        moved_bytes(fused),
        skips_zero_rows=True,
    )


def _of_labels(node: Node) -> int:
    """Return the bytes of a fused linear layer and label score: int8 rows and partial sums."""
    rows, columns = math.prod(shape_of(operand(node))[:-1]), shape_of(operand(node, 1))[0]
    rounded = _rounded_rows(node) if is_call(node, zo.rounded_linear_label_logprobs_int4) else 0
    return rounded + rows * (8 + _LOGIT_SUM * -(-columns // _LABEL_COLUMNS))


def _rounded(nodes: Iterable[Node]) -> int:
    """Bytes of the rounded rows that the thread which calls the products keeps between them."""
    products = (node for node in nodes if is_call(node, *_ROUNDED))
    return max(map(_rounded_rows, products), default=0)


def _rounded_rows(node: Node) -> int:
    """Bytes of what a product reads, rounded: one for each number, a scale and an offset for 32."""
    return math.prod(shape_of(operand(node))) * 5 // 4


def _gathered(nodes: Iterable[Node]) -> int:
    """Return the bytes of an expert's rows and products that the calling thread keeps between products."""
    return max(
        (
            4
            * min(_GATHERED_ROWS, math.prod(shape_of(node)[:-1]))
            * (shape_of(operand(node))[-1] + shape_of(node)[-1])
            for node in nodes
            if is_call(node, *ROUTED_LINEARS)
        ),
        default=0,
    )


def _bytes(node: Node) -> int:
    value = node.meta.get("val")
    return value.nbytes if isinstance(value, torch.Tensor) else 0


def _scratch(node: Node) -> int:
    """Return the bytes that a product takes in each thread."""
    if is_call(node, *_ROUNDED):
        return _ROUNDED_PANEL * shape_of(operand(node))[-1] // 32
    if is_call(node, *_INT4_AND_INT8, *ROUTED_LINEARS, aten.linear):
        rows, depth = math.prod(shape_of(operand(node))[:-1]), shape_of(operand(node))[-1]
    else:
        first = 1 if is_call(node, zo.add_matmul) else 0
        transposed = is_call(node, *_OF_TENSORS) and bool(node.args[first + 2])
        *_, rows, depth = shape_of(operand(node, first))
        rows, depth = (depth, rows) if transposed else (rows, depth)
    panel = _MOST_DEPTH * _PANEL_WIDTH
    plain = panel + min(_MOST_ROWS * _MOST_DEPTH, min(_MOST_ROWS, rows) * depth)
    # Processors without tiles take less.
    tall = _rounded_up(min(_MOST_TILED_ROWS, rows), _TILE_ROWS)
    deep = _rounded_up(depth, _TILE_DEPTH)
    kept = tall * deep <= _MOST_TILED_ROWS * _MOST_DEPTH
    tiled = panel + tall * (deep if kept else _MOST_DEPTH)
    return max(4 * plain, _TILED_BYTES * tiled)


def _rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _tiles(node: Node) -> int:
    """Return the bytes that attention, or its gradient, takes in each thread."""
    depth, width = (shape_of(operand(node, index))[-1] for index in (0, 2))
    if is_call(node, zo.attention):
        floats = (_QUERIES + _KEYS) * depth + _QUERIES * (_KEYS + width) + _KEYS * _PANEL_WIDTH
    else:
        tile = max(_PANEL_WIDTH, min(_TILE, _TILE_FLOATS // max(depth, width)))
        floats = tile * (4 * depth + 3 * width) + 2 * tile * tile
    return 4 * floats


def moved_bytes(program: Program) -> int:
    """Return the bytes that calls read and write; of a table, the rows that are looked up."""
    layout = Layout(program)
    moved = 0
    for node in layout.nodes:
        results = layout.results(node)
        if not results:
            continue
        read = sum(_bytes(arg) for arg in node.all_input_nodes)
        if is_call(node, *_LOOKUPS):
            tables, indices = node.all_input_nodes[:-1], math.prod(shape_of(node)[:-1])
            read = sum(_bytes(table) * indices // max(1, shape_of(table)[0]) for table in tables)
        if is_call(node, *ROUTED_LINEARS):
            x, *weights, experts = node.all_input_nodes
            read = _bytes(x) + _bytes(experts) + sum(_of_chosen(part, experts) for part in weights)
        moved += read + sum(value.nbytes for value in results)
    return moved


def _of_chosen(weight: Node, experts: Node) -> int:
    """Return the bytes of the experts that tokens choose, if routers choose each with the same probability."""
    (tokens, k), count = shape_of(experts), shape_of(weight)[0]
    return int(_bytes(weight) * (1 - (1 - k / count) ** tokens))
