"""differentiate: a backward program for every program that training passes through.

For a program y = F(x, w), and the loss E, the gradient of s = sum(dE/dy * y) with dE/dy held fixed is that of E (MeBP
section 3). Before::

    layer.0(hidden, W, A, B) -> hidden

After, F computed again inside::

    layer.0.backward(hidden, W, A, B, output_gradient.hidden) -> gradients of hidden, A, B, under their names

The output head's takes labels and what the loss gives each of them, d loss / d log-probability::

    head.backward(hidden, W, label_tokens, label_weights) -> label_logprobs, label_is_argmax, gradient of hidden

Left alone: what lies below the first stage that trains anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._subclasses import FakeTensorMode
from torch.fx import Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx

from zoexport.core.graph import LayerGraph, Program, Value
from zoexport.core.interpreted import InterpretedGraph
from zoexport.ir.decompose import core_decompositions, without_writes
from zoexport.ir.graphs import (
    aten,
    operand,
    output_node,
    remove_unused_weights,
    zo,
)
from zoexport.ir.normalize import normalize
from zoexport.ir.rewrite import rewrite
from zoexport.ir.shapes import fake_inputs, record_shapes
from zoexport.passes.split_layers import HEAD

_BACKWARD_OPERATORS = (
    aten.silu_backward,
    aten._softmax_backward_data,
    aten.gelu_backward,
    aten.native_layer_norm_backward,
    aten.slice_backward,
    aten.tanh_backward,
    aten.sigmoid_backward,
    aten.threshold_backward,
    aten.expand_copy,
)


def differentiate(graph: LayerGraph) -> LayerGraph:
    """Add the backward programs, and name them in the stages."""
    trainable = {slot.name for slot in graph.slots if slot.role == "trainable"}
    first = next(
        number for number, stage in enumerate(graph.stages) if trainable & {*stage.bind.values()}
    )
    for stage in graph.stages[first:]:
        stage.backward = f"{stage.forward}.backward"
    wanted = trained_inputs(graph)
    for program in list(graph.programs.values()):
        if program.family in wanted:
            backward, _ = traced_backward(program, wanted[program.family])
            finish_backward(backward)
            graph.programs[backward.name] = backward
    return graph


def trained_inputs(graph: LayerGraph) -> dict[str, set[str]]:
    """The inputs that are trained, by family of the programs that have a backward program."""
    trainable = {slot.name for slot in graph.slots if slot.role == "trainable"}
    return {
        stage.forward: {local for local, name in stage.bind.items() if name in trainable}
        for stage in graph.stages
        if stage.backward is not None
    }


def traced_backward(
    program: Program, trainable: set[str], observed: Sequence[Node] = ()
) -> tuple[Program, list[Node]]:
    """Trace the backward program for :func:`finish_backward`; it contains the forward pass.

    Args:
        trainable: inputs to differentiate by, in addition to activations.
        observed: calls of ``program``.

    Returns:
        The program, and its node for each observed call, dead code if no gradient needs the node.
    """
    given = list(program.inputs)
    chosen = [
        number
        for number, value in enumerate(given)
        if value.role == "activation" or value.name in trainable
    ]
    added, results, cotangents = (
        _of_labels(program) if program.family == HEAD else _of_gradients(program)
    )
    count = len(given)

    def gradients(*values: Tensor) -> list[Tensor]:
        inputs = list(values[:count])
        with torch.enable_grad():
            for number in chosen:
                inputs[number] = inputs[number].detach().requires_grad_()
            forward = Interpreter(program.module, garbage_collect_values=False)
            outputs = forward.run(*inputs)
            kept, weights = cotangents(outputs, values[count:])
            wanted = [inputs[number] for number in chosen]
            # Inputs that only select, such as which experts run, have no gradient.
            grads = torch.autograd.grad(outputs, wanted, weights, allow_unused=True)
            found = [
                torch.zeros_like(one) if grad is None else grad
                for one, grad in zip(wanted, grads, strict=True)
            ]
        return [*kept, *found, *(forward.env[node] for node in observed)]

    inputs = [*given, *added]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    table: dict[Any, Callable[..., Any]] = {
        **core_decompositions(),
        **get_decompositions(_BACKWARD_OPERATORS),
        aten.select_backward.default: _select_backward,
        aten.convolution_backward.default: _convolution_backward,
    }
    with mode:
        traced = make_fx(gradients, decomposition_table=table)(*fake_inputs(inputs, mode))
        traced = without_writes(traced, fake_inputs(inputs, mode))
    for number in chosen:
        value = given[number]
        role = "input_gradient" if value.role == "activation" else "state_gradient"
        results.append(Value(value.name, role, "float32", value.shape))
    family = f"{program.family}.backward"
    name = program.name.replace(program.family, family, 1)
    module = InterpretedGraph(traced.graph)
    output = output_node(module)
    returned: Any = output.args[0]
    output.args = (tuple(returned[: len(results)]),)
    made = Program(name, module, inputs, results, family, program.length)
    return made, list(returned[len(results) :])


def finish_backward(program: Program) -> None:
    """Bring a traced program into the normal form."""
    rewrite(program, [((aten.detach, aten.alias), operand)])
    normalize(program)
    remove_unused_weights(program)
    record_shapes(program)


def _select_backward(gradient: Tensor, sizes: list[int], dim: int, index: int) -> Tensor:
    """select_backward: the gradient in its place among zeros, which is part of a row where that can be said."""
    dim, index = dim % len(sizes), index % sizes[dim]
    if dim != len(sizes) - 2:
        zeros, part = gradient.new_zeros(sizes), gradient.unsqueeze(dim)
        made: Tensor = aten.slice_scatter(zeros, part, dim, index, index + 1)
        return made
    *lead, count, width = sizes
    zeros = gradient.new_zeros([*lead, count * width])
    rows: Tensor = aten.slice_scatter(zeros, gradient, -1, index * width, (index + 1) * width)
    return rows.view(sizes)


def _convolution_backward(
    gradient: Tensor,
    inputs: Tensor,
    weight: Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> Any:
    """convolution_backward of frozen weights: a transposed convolution, without results that nothing reads.

    ExecuTorch plans no memory for results that are masked out.
    """
    if transposed or output_mask[1] or output_mask[2]:
        return NotImplemented
    added = [
        inputs.shape[axis + 2]
        - ((gradient.shape[axis + 2] - 1) * stride[axis] - 2 * padding[axis])
        - dilation[axis] * (weight.shape[axis + 2] - 1)
        - 1
        for axis in range(len(stride))
    ]
    made = aten.convolution(gradient, weight, None, stride, padding, dilation, True, added, groups)
    return made, None, None


_Cotangents = Callable[
    [Sequence[Tensor], Sequence[Tensor]], tuple[Sequence[Tensor], Sequence[Tensor]]
]


def _of_gradients(program: Program) -> tuple[list[Value], list[Value], _Cotangents]:
    """The gradients of the program's outputs are inputs."""
    added = [
        dataclasses.replace(value, name=f"output_gradient.{value.name}", role="output_gradient")
        for value in program.outputs
    ]
    return added, [], lambda _, given: ([], given)


def _of_labels(program: Program) -> tuple[list[Value], list[Value], _Cotangents]:
    """The gradient of the logits follows from the labels and their weights."""
    (logits,) = program.outputs
    rows = logits.shape[:1]
    added = [
        Value("label_tokens", "label_tokens", "int64", rows),
        Value("label_weights", "label_weights", "float32", rows),
    ]
    results = [Value(role, role, "float32", rows) for role in ("label_logprobs", "label_is_argmax")]

    def cotangents(outputs: Sequence[Tensor], given: Sequence[Tensor]) -> Any:
        logprobs, is_argmax, gradient = zo.label_gradient(outputs[0].detach(), *given)
        return [logprobs, is_argmax], [gradient]

    return added, results, cotangents
