"""quantize_stages: frozen linear weights and the token embedding of a split graph in int4 or int8 (docs/formats.md).

Before::

    layer.0(hidden; W) -> hidden                    y = aten.linear(hidden, W, bias)

After, each stage binding codes and scales of its own weight::

    layer.0(hidden; W.codes, W.scales) -> hidden    y = zoexport.linear_int4(hidden, W.codes, W.scales, bias)

The weights of routed experts are quantized in the same way, with an axis of experts before the others.
Activations stay float32. Only shapes are needed here: values are quantized when the file of weights is written. Left
alone: adapters, norms, biases, tables over positions, ``graph.unquantized``, and weights that other operators read too.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch.fx import Node

from zoexport.core import int4
from zoexport.core.graph import LayerGraph, Program, Value
from zoexport.ir.graphs import (
    add_input,
    arguments,
    aten,
    call,
    is_call,
    operand,
    placeholders,
    remove_unused_weights,
    zo,
)
from zoexport.passes.quantize_weights import embedding_int8


def quantize_stages(
    graph: LayerGraph,
    *,
    weights: str,
    group_size: int,
    steps: bool = False,
    int8: Collection[str] = (),
) -> LayerGraph:
    """Quantize what the stages bind.

    Args:
        weights: ``int4`` or ``int8``.
        group_size, steps: of ``core.int4.quantize_int4``.
        int8: last parts of the paths of modules whose weights are int8 in any case.

    Raises:
        ConfigError: the group size does not divide a layer's input size.
    """
    for program in graph.programs.values():
        stages = graph.stages_of(program)
        for local, node in placeholders(program).items():
            if not _is_quantizable(graph, program, stages[0].bind.get(local, ""), node):
                continue
            format_ = "int8" if _module(local) in int8 else weights
            shapes = _declare(graph, stages[0].bind[local], format_, group_size, steps)
            _rewrite(program, local, node, format_, shapes)
            for stage in stages:
                name = stage.bind.pop(local)
                _declare(graph, name, format_, group_size, steps)
                for part in shapes:
                    stage.bind[f"{local}.{part}"] = f"{name}.{part}"
        remove_unused_weights(program)
    graph.packing = int4.packing_id(group_size) if weights == "int4" else "int8-symmetric/1"
    return graph


def _module(local: str) -> str:
    """Return the last part of the path of a weight's module."""
    return local.removesuffix(".weight").rpartition(".")[2]


def _is_quantizable(graph: LayerGraph, program: Program, name: str, node: Node) -> bool:
    if name not in graph.parameters - graph.unquantized or not node.users:
        return False
    if len(node.meta["val"].shape) != 2:
        return all(is_call(user, zo.routed_linear) and user.args[1] is node for user in node.users)
    tokens = placeholders(program).get("tokens")
    return all(
        (is_call(user, aten.linear) and user.args[1] is node and user.args[0] is not node)
        or (is_call(user, aten.embedding) and tokens is not None and user.args[1] is tokens)
        for user in node.users
    )


def _declare(
    graph: LayerGraph, name: str, weights: str, group_size: int, steps: bool
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Codes and scales of a weight among the graph's weights, without values: dtype and shape of each."""
    *rows, width = graph.weights[name].shape
    if weights == "int4":
        int4.check_group_size(group_size, width, where=f"setting 'group_size', for {name}")
        parts: dict[str, tuple[str, tuple[int, ...]]] = {
            "codes": ("uint8", (*rows, width // 2)),
            "scales": ("bfloat16", (*rows, width // group_size)),
        }
    else:
        parts = {"codes": ("int8", (*rows, width)), "scales": ("float32", (*rows,))}
    for part, (dtype, shape) in parts.items():
        graph.weights[f"{name}.{part}"] = torch.empty(
            shape, dtype=getattr(torch, dtype), device="meta"
        )
    graph.quantized[name] = (group_size, steps) if weights == "int4" else (0, False)
    return parts


def _rewrite(
    program: Program,
    local: str,
    node: Node,
    weights: str,
    parts: dict[str, tuple[str, tuple[int, ...]]],
) -> None:
    codes, scales = (
        add_input(program, Value(f"{local}.{part}", "weight", dtype, shape))
        for part, (dtype, shape) in parts.items()
    )
    linear, routed = (
        (zo.linear_int4.default, zo.routed_linear_int4.default)
        if weights == "int4"
        else (zo.linear_int8.default, zo.routed_linear_int8.default)
    )
    nodes = program.module.graph
    for user in list(node.users):
        with nodes.inserting_before(user):
            if is_call(user, aten.linear):
                x, _, *rest = arguments(user)
                made = call(nodes, linear, x, codes, scales, rest[0] if rest else None)
            elif is_call(user, zo.routed_linear):
                x, _, *rest = arguments(user)
                made = call(nodes, routed, x, codes, scales, *rest)
            elif weights == "int4":
                made = call(nodes, zo.embedding_int4.default, codes, scales, user.args[1])
            else:
                made = embedding_int8(nodes, codes, scales, operand(user, 1))
        user.replace_all_uses_with(made)
        nodes.erase_node(user)
