"""Programs of single layers in the form that the NPU takes: one for each stage, with the stage's weights as constants.

Before, one program for all identical layers, which each stage binds its weights to::

    layer.0(hidden; W.codes, W.scales, A, B) -> hidden      y = zoexport.linear_int4(hidden, W.codes, W.scales, bias)
    layer.0.backward(...)                       g = zoexport.linear_int4_input_gradient(dy, W.codes, W.scales)

After, for a stage, W the values that its codes stand for::

    model.layers.3(hidden; W, A, B) -> hidden               y = aten.linear(hidden, W, bias)
    model.layers.3.backward(...)                            g = aten.matmul(dy, W)

The HTP multiplies by constants that were laid out for it when the program was compiled; weights that came as inputs
would be converted and laid out in every call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from zoexport.core import int4
from zoexport.core.graph import Program, Stage, TrainingGraph
from zoexport.ir.graphs import (
    arguments,
    aten,
    call,
    copy_program,
    is_call,
    placeholders,
    remove_unused_weights,
    weight_input,
    zo,
)
from zoexport.targets.executorch.qnn.backward import (
    layer_norm_gradients,
    norm_gradients,
    sigmoid_gradients,
    softmax_gradients,
)
from zoexport.targets.executorch.qnn.form import for_htp
from zoexport.targets.executorch.qnn.gradients import scale_gradients, scale_small_slots

_FORWARD = (zo.linear_int4, zo.linear_int8)
_BACKWARD = (zo.linear_int4_input_gradient, zo.linear_int8_input_gradient)


def stage_programs(
    graph: TrainingGraph, stage: Stage, values: Mapping[str, Tensor]
) -> tuple[Stage, list[tuple[Program, dict[str, Tensor]]]]:
    """Return a stage's own programs, each with its weights by their names in the program.

    Args:
        graph: split, with programs for rows of one length.
        stage: a stage of the graph.
        values: values of the weights that the stage binds.

    Returns:
        The new stage, which binds only state tensors, and its forward and any backward program.
    """
    bound = {local: values[name] for local, name in stage.bind.items() if name in values}
    made = []
    for family in (stage.forward, stage.backward):
        for program in graph.programs.values():
            if program.family == family:
                made.append(_for_stage(graph, stage, program, dict(bound)))
    slots = {local: name for local, name in stage.bind.items() if name not in values}
    backward = None if stage.backward is None else made[-1][0].family
    return Stage(stage.name, stage.name, backward, slots), made


def _for_stage(
    graph: TrainingGraph, stage: Stage, program: Program, weights: dict[str, Tensor]
) -> tuple[Program, dict[str, Tensor]]:
    backward = program.family == stage.backward
    family = f"{stage.name}.backward" if backward else stage.name
    name = family if program.length is None else f"{family}@{program.length}"
    made = copy_program(program, name)
    made.family = family
    _products(made, weights)
    if backward:
        norm_gradients(made)
        softmax_gradients(made)
        sigmoid_gradients(made)
        layer_norm_gradients(made)
    alone = dataclasses.replace(graph, programs={name: made}, weights=weights)
    made = for_htp(alone, name)
    if backward:
        scale_gradients(made)
        scale_small_slots(made)
    return made, weights


def _products(program: Program, weights: dict[str, Tensor]) -> None:
    """Products that read codes and scales: products with the numbers that these stand for."""
    nodes = program.module.graph
    names = {node: name for name, node in placeholders(program).items()}
    for node in list(nodes.nodes):
        if not is_call(node, *_FORWARD, *_BACKWARD):
            continue
        x, codes, scales, *bias = arguments(node)
        name = names[codes].removesuffix(".codes")
        if name not in weights:
            four_bits = weights[names[codes]].dtype == torch.uint8
            read = int4.dequantize_int4 if four_bits else int4.dequantize_int8
            weights[name] = read(weights[names[codes]], weights[names[scales]])
        weight = weight_input(program, name, weights[name])
        with nodes.inserting_before(node):
            if is_call(node, *_FORWARD):
                made = call(nodes, aten.linear.default, x, weight, *bias)
            else:
                made = call(nodes, aten.matmul.default, x, weight)
        node.replace_all_uses_with(made)
        nodes.erase_node(node)
    remove_unused_weights(program)
