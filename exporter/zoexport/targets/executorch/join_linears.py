"""join_linears: layers that read the same rows, rounded to 8 bits, are one call: rows are rounded once.

Before::

    q = zoexport.rounded_linear(x, Q.codes, Q.scales, Q.bias)
    k = zoexport.rounded_linear(x, K.codes, K.scales, K.bias)
    v = zoexport.rounded_linear(x, V.codes, V.scales, V.bias)

After::

    q, k, v = zoexport.rounded_linears_3(
        x, Q.codes, Q.scales, Q.bias, K.codes, K.scales, K.bias, V.codes, V.scales, V.bias)

The bits stay. Left alone: layers whose weights are computed, and those between which a layer reads other rows, as the
two blocks of a model with attention and feed-forward side by side: one's results would wait in memory for the other.
"""

from __future__ import annotations

import itertools
from operator import getitem

from torch.fx import Node

from zoexport.core.graph import Program
from zoexport.ir.graphs import arguments, call, is_call, operand, zo

_TOGETHER = {2: zo.rounded_linears_2.default, 3: zo.rounded_linears_3.default}


def join_linears(program: Program) -> Program:
    """Rewrite a program in place; where more layers read the same rows than one call takes, it has several calls."""
    calls = [
        node
        for node in program.module.graph.nodes
        if is_call(node, zo.rounded_linear) and _reads_weights_alone(node)
    ]
    most = max(_TOGETHER)
    for x, neighbours in itertools.groupby(calls, operand):
        layers = list(neighbours)
        for begin in range(0, len(layers), most):
            _join(x, layers[begin : begin + most])
    return program


def _reads_weights_alone(node: Node) -> bool:
    """Return whether a layer reads only program inputs, except for its activations."""
    return all(arg.op == "placeholder" for arg in node.all_input_nodes if arg is not operand(node))


def _join(x: Node, layers: list[Node]) -> None:
    if len(layers) not in _TOGETHER:
        return
    nodes = x.graph
    with nodes.inserting_before(layers[0]):
        weights = [given for layer in layers for given in arguments(layer)[1:]]
        joined = call(nodes, _TOGETHER[len(layers)], x, *weights)
        results = [call(nodes, getitem, joined, number) for number in range(len(layers))]
    for layer, result in zip(layers, results, strict=True):
        layer.replace_all_uses_with(result)
        nodes.erase_node(layer)
