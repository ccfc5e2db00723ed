"""Footprints: what lowered programs take, from their graphs alone.

Programs of layers are fused and planned as they are when they are lowered: the same bytes as in the program file.
Whole programs are delegated to XNNPACK, which has memory of its own for what its parts compute; there ExecuTorch's
planner gives an estimate of both, with results of elementwise operations in their operand's place, as XNNPACK has them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Node

from zoexport.core.types import Footprint, Program
from zoexport.ir.graphs import (
    INPUT_GRADIENTS,
    QUANTIZED_LINEARS,
    RESHAPES,
    aten,
    is_call,
    is_own,
    operand,
    output_node,
    shape_of,
    zo,
)
from zoexport.targets.executorch.emit import planned_bytes
from zoexport.targets.executorch.layouts import is_layout
from zoexport.targets.executorch.lower_stages import lowered_program

_ALIGNMENT = 16
# A panel of B, and rows of A beside it, in runtime_ops/kernels/products.cpp.
_PANEL_WIDTH, _MOST_ROWS, _MOST_DEPTH = 32, 280, 384
# By tiles, where a number is three of 16 bits.
_TILE_ROWS, _TILE_DEPTH, _MOST_TILED_ROWS, _TILED_BYTES = 16, 32, 256, 6
# Queries and keys of a tile, in runtime_ops/kernels/attention.cpp.
_QUERIES, _KEYS, _TILE = 128, 128, 128
_TILE_FLOATS = 1 << 14
_OF_SEVERAL = (zo.rounded_linears_2, zo.rounded_linears_3)
_ROUNDED = (zo.rounded_linear_int4, *_OF_SEVERAL)
_INT4_AND_INT8 = (
    zo.grid_linear_int4,
    zo.grid_linear_int8,
    *QUANTIZED_LINEARS,
    *_OF_SEVERAL,
    *INPUT_GRADIENTS,
)
_DELEGATED_CALL = 20_000
"""Bytes that XNNPACK keeps for an operation on matrices, beside tensors; measured."""
_OF_TENSORS = (zo.matmul, zo.add_matmul)
_PRODUCTS = (aten.linear, aten.mm, aten.bmm, aten.matmul, *_OF_TENSORS, *_INT4_AND_INT8)
_LABELS = (
    zo.linear_label_logprobs,
    zo.linear_label_logprobs_int4,
    zo.rounded_linear_label_logprobs_int4,
)
# Of runtime_ops/kernels/linear_label_logprobs.cpp: logits in a thread, and a sum of each row and block of columns.
_LABEL_ROWS, _LABEL_COLUMNS, _LOGIT_SUM = 64, 1024, 16
_ATTENTION = (zo.attention, zo.attention_gradient)
_LOOKUPS = (aten.embedding, zo.embedding_int4)


def split_footprint(program: Program) -> Footprint:
    """The footprint of a program of single layers, whose inputs and outputs are in the caller's memory."""
    fused = lowered_program(program)
    nodes = list(fused.module.graph.nodes)
    returned = set(output_node(fused.module).all_input_nodes)
    aliases = {
        node: operand(node)
        for node in nodes
        if is_call(node, aten.view, aten._unsafe_view) and node not in returned
    }
    return Footprint(
        planned_bytes(fused) + _rounded(nodes),
        # A thread keeps what its products took, and what attention did, beside each other.
        max((_scratch(node) for node in nodes if is_call(node, *_PRODUCTS)), default=0)
        + sum(
            max((_tiles(node) for node in nodes if is_call(node, kind)), default=0)
            for kind in _ATTENTION
        ),
        _moved(nodes, aliases),
        skips_zero_rows=True,
    )


def whole_footprint(program: Program) -> Footprint:
    """The footprint of a program of a whole model, without its weights."""
    nodes = list(program.module.graph.nodes)
    aliases = {node: operand(node) for node in nodes if is_call(node, *RESHAPES) or _is_view(node)}
    in_place = {
        node
        for node in nodes
        if torch.Tag.pointwise in getattr(node.target, "tags", ()) and not is_call(node, aten.silu)
    }
    # What our own operators read and give passes between delegates.
    between = {_owner(end, aliases) for node in nodes if is_own(node) for end in _ends(node)}
    outside = _planned(nodes, aliases, set(), between)
    delegated = _planned(nodes, aliases, in_place, set(nodes) - between)
    delegated += _rounded(nodes) + _DELEGATED_CALL * sum(
        is_call(node, *_PRODUCTS) and not is_call(node, *_ROUNDED) for node in nodes
    )
    labels = [node for node in nodes if is_call(node, *_LABELS)]
    delegated += sum(_of_labels(node) for node in labels)
    scratch = 4 * _LABEL_ROWS * _LABEL_COLUMNS if labels else 0
    return Footprint(outside + delegated, scratch, _moved(nodes, aliases))


def _of_labels(node: Node) -> int:
    """Bytes that a linear layer takes whose logits are not kept: rounded rows, and a sum for each block of columns."""
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


def _ends(node: Node) -> list[Node]:
    return [
        node,
        *node.all_input_nodes,
        *(user for user in node.users if user.target is operator.getitem),
    ]


def _is_view(node: Node) -> bool:
    """Layouts of sizes that leave elements where they are; XNNPACK computes transposes and slices."""
    return is_layout(node) and not is_call(node, aten.permute, aten.transpose, aten.t, aten.slice)


def _planned(
    nodes: list[Node],
    aliases: dict[Node, Node],
    in_place: set[Node],
    among: set[Node] | None = None,
) -> int:
    """Bytes that ExecuTorch's planner takes for what ``nodes`` compute, the program's outputs aside.

    Args:
        nodes: in order, the output last.
        aliases: values that lie where another does.
        in_place: results that may take the place of an operand that nothing reads later.
        among: the only values that count, where not all do.
    """
    from executorch.exir.memory_planning import greedy
    from executorch.exir.tensor import TensorSpec

    place = {node: 2 * number for number, node in enumerate(nodes)}
    read: dict[Node, int] = {}
    for node in nodes:
        for arg in node.all_input_nodes:
            read[_owner(arg, aliases)] = place[node]
    returned = {_owner(node, aliases) for node in nodes[-1].all_input_nodes}
    specs = []
    for node in nodes:
        value = node.meta.get("val")
        if not _is_computed(node) or node in aliases or node in returned:
            continue
        if not isinstance(value, torch.Tensor) or (among is not None and node not in among):
            continue
        # The parts of a result begin with the call that gives them.
        begin = place[operand(node) if node.target is operator.getitem else node]
        last = {_owner(arg, aliases) for arg in node.all_input_nodes}
        free = any(
            read[arg] == begin and _is_computed(arg) and _bytes(arg) == _bytes(node) for arg in last
        )
        spec = TensorSpec(value.dtype, value.shape)
        spec.lifetime = [begin + (node in in_place and free), read.get(node, begin)]
        spec.realign(_ALIGNMENT)
        specs.append(spec)
        if in_place and is_call(node, aten.silu):
            # x times its sigmoid, which XNNPACK has beside both.
            sigmoid = TensorSpec(value.dtype, value.shape)
            sigmoid.lifetime = [begin, begin]
            sigmoid.realign(_ALIGNMENT)
            specs.append(sigmoid)
    sizes = greedy(
        _ALIGNMENT, specs, torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph()), None
    )
    return int(sum(sizes.bufsizes))


def _is_computed(node: Node) -> bool:
    # A call with several results is its parts.
    return node.op == "call_function"


def _owner(node: Node, aliases: dict[Node, Node]) -> Node:
    while node in aliases:
        node = aliases[node]
    return node


def _bytes(node: Node) -> int:
    value = node.meta.get("val")
    return value.nbytes if isinstance(value, torch.Tensor) else 0


def _scratch(node: Node) -> int:
    """Bytes that a product takes in each thread."""
    if is_call(node, *_INT4_AND_INT8, aten.linear):
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
    """Bytes that attention, or its gradient, takes in each thread."""
    depth, width = (shape_of(operand(node, index))[-1] for index in (0, 2))
    if is_call(node, zo.attention):
        floats = (_QUERIES + _KEYS) * depth + _QUERIES * (_KEYS + width) + _KEYS * _PANEL_WIDTH
    else:
        tile = max(_PANEL_WIDTH, min(_TILE, _TILE_FLOATS // max(depth, width)))
        floats = tile * (4 * depth + 3 * width) + 2 * tile * tile
    return 4 * floats


def _moved(nodes: Iterable[Node], aliases: dict[Node, Node]) -> int:
    """Bytes that calls read and write; of a table, the rows that are looked up."""
    moved = 0
    for node in nodes:
        if not _is_computed(node) or node in aliases or node.target is operator.getitem:
            continue
        written = sum(_bytes_of(value) for value in _values(node.meta.get("val")))
        read = sum(_bytes(arg) for arg in node.all_input_nodes)
        if is_call(node, *_LOOKUPS):
            tables, indices = node.all_input_nodes[:-1], math.prod(shape_of(node)[:-1])
            read = sum(_bytes(table) * indices // max(1, shape_of(table)[0]) for table in tables)
        moved += written + read
    return moved


def _values(value: Any) -> Iterable[Any]:
    return value if isinstance(value, tuple | list) else [value]


def _bytes_of(value: Any) -> int:
    return value.nbytes if isinstance(value, torch.Tensor) else 0
