"""Segments: the nodes of a captured model by decoder layer, found by the module paths that export records.

Segment 0 is what comes before the first layer, segment i the layer that runs as the i-th, the last one what follows
the layers.
"""

from __future__ import annotations

import re
from collections import Counter

from torch.fx import Node

from zoexport.core.errors import VerifyError
from zoexport.core.graph import Program
from zoexport.ir.graphs import described, module_path, placeholders

_IN_LIST = re.compile(r"^(.*?)\.(\d+)(?:\.|$)")
_REPORT = "Report the model's architecture."


def layer_stack(program: Program) -> str:
    """Return the path of the module list that most nodes come from: the decoder layers.

    Raises:
        VerifyError: no node comes from a list of modules.
    """
    lists: Counter[str] = Counter()
    for node in program.module.graph.nodes:
        match = _IN_LIST.match(module_path(node))
        if match is not None:
            lists[match[1]] += 1
    if not lists:
        raise VerifyError(
            f"program {program.name}",
            found="no module of a list",
            expected="decoder layers in an nn.ModuleList",
            fix=_REPORT,
        )
    return lists.most_common(1)[0][0]


def segments(program: Program, stack: str) -> list[list[Node]]:
    """Return the calls that depend on the tokens, by segment, each in graph order.

    A call of no layer belongs to the segment of what it reads; what reads the last layer follows the layers.

    Raises:
        VerifyError: a layer reads one that comes after it, or runs twice.
    """
    reached = {placeholders(program)["tokens"]}
    calls = []
    for node in program.module.graph.nodes:
        if node.op == "call_function" and reached.intersection(node.all_input_nodes):
            reached.add(node)
            calls.append(node)
    order: dict[str, int] = {}
    for node in calls:
        if (layer := layer_of(node, stack)) is not None:
            order.setdefault(layer, len(order) + 1)
    place = dict.fromkeys(reached, 0)
    found: list[list[Node]] = [[] for _ in range(len(order) + 2)]
    for node in calls:
        latest = max(place[arg] for arg in node.all_input_nodes if arg in reached)
        layer = layer_of(node, stack)
        follows_layers = layer is None and latest == len(order)
        place[node] = order[layer] if layer is not None else latest + follows_layers
        if latest > place[node]:
            raise VerifyError(
                f"[split_layers] {described(node)}",
                found=f"a value of layer {latest} in layer {place[node]}",
                expected="layers that run one after another",
                fix=_REPORT,
            )
        found[place[node]].append(node)
    return found


def layer_of(node: Node, stack: str) -> str | None:
    """The number in the stack of the layer that a node comes from, as the path has it; None for one of no layer."""
    path = module_path(node)
    return path[len(stack) + 1 :].split(".")[0] if path.startswith(f"{stack}.") else None
