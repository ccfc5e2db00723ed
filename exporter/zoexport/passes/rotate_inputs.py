"""rotate_inputs: inputs of quantized layers that have outliers are rotated before they are rounded (docs/formats.md).

Before::

    embed(tokens; W.codes, ...) -> hidden     hidden = zoexport.embedding_int4(W.codes, W.scales, tokens)
    head(hidden; W.codes, ...) -> logits      logits = zoexport.linear_int4(hidden, W.codes, W.scales, None)

After, with weights stored as W R (R a block Hadamard matrix, its own inverse)::

    hidden = zoexport.rotate_rows(zoexport.embedding_int4(W.codes, W.scales, tokens))
    logits = zoexport.linear_int4(zoexport.rotate_rows(hidden), W.codes, W.scales, None)

Adapters read the row as it was. Layers that share a program are rotated together. Left alone:
layers of other weights, and inputs whose rounding errors fall less than twofold
(``calibration.rotation_gains``): rotated weights have no advantage of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch.fx import Node

from zoexport.core.graph import LayerGraph, Program
from zoexport.ir.graphs import aten, call, is_call, operand, placeholders, zo

MINIMUM_GAIN = 2.0
"""The geometric mean over the layers that share a program."""
_CODES = ".codes"


def pays(gains: Iterable[float]) -> bool:
    """Return whether to rotate the layers of one program, given ``calibration.rotation_gains``."""
    found = [*gains]
    return math.fsum(map(math.log, found)) >= len(found) * math.log(MINIMUM_GAIN)


def rotate_inputs(graph: LayerGraph) -> LayerGraph:
    """Rotate what quantized layers read, and note which weights are stored rotated."""
    rotated: set[str] = set()
    for program in graph.programs.values():
        rotated |= _rotate_layers(graph, program)
    for program in graph.programs.values():
        _rotate_tables(graph, program, rotated)
    graph.rotated = sorted(rotated)
    return graph


def _rotate_layers(graph: LayerGraph, program: Program) -> set[str]:
    """Rotate what the layers of a program read; the weights of all stages that call it."""
    nodes = program.module.graph
    names = {node: name for name, node in placeholders(program).items()}
    turned: dict[Node, Node] = {}
    known = graph.measured.gains or {}
    found: set[str] = set()
    for node in list(nodes.nodes):
        if not is_call(node, zo.linear_int4, zo.linear_int8):
            continue
        local = names[operand(node, 1)]
        bound = {stage.bind[local].removesuffix(_CODES) for stage in graph.stages_of(program)}
        if not pays(known.get(name.removesuffix(".weight"), 1.0) for name in bound):
            continue
        x = operand(node)
        if x not in turned:
            with nodes.inserting_before(node):
                turned[x] = call(nodes, zo.rotate_rows.default, x)
        node.update_arg(0, turned[x])
        found |= bound
    return found


def _rotate_tables(graph: LayerGraph, program: Program, rotated: set[str]) -> None:
    """Turn the rows of a table back that is a layer's weight too."""
    nodes = program.module.graph
    names = {node: name for name, node in placeholders(program).items()}
    for node in list(nodes.nodes):
        if not is_call(node, zo.embedding_int4, aten.embedding):
            continue
        local = names.get(operand(node), "")
        if not local.endswith(_CODES):
            continue
        if is_call(node, aten.embedding):
            # Codes of int8 become floats, which are multiplied by the scale of their row.
            (values,) = node.users
            (node,) = values.users
        bound = {stage.bind[local] for stage in graph.stages_of(program)}
        if {name.removesuffix(_CODES) for name in bound} & rotated:
            with nodes.inserting_after(node):
                restored = call(nodes, zo.rotate_rows.default, node)
            node.replace_all_uses_with(restored)
            restored.update_arg(0, node)
