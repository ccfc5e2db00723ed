"""coreml_rules: say the same with operators that ExecuTorch's Core ML delegate takes: a program is one delegate.

Its converter stores a weight of 4 or 8 bits where it reads ``torchao.dequantize_affine`` over constants. Before, and
after::

    y = zoexport.linear_int4(x, codes, scales, None)                  # codes: two in a byte; scales: bfloat16
    dx = zoexport.linear_int4_input_gradient(dy, codes, scales)

    w = torchao.dequantize_affine(codes.int8, [1, 32], scales.fp32, None, int8, -8, 7)
    y = aten.linear(x, w, None)
    dx = aten.matmul(dy, w)                                           # the same constant: nothing is transposed

Log-probabilities of labels are by the logarithm of a sum of exponentials, in fp32. Three operators the converter
(coremltools 9.0) takes and does not have whole: it drops ``approximate`` of ``aten.gelu``, gives no mean of
``aten.native_layer_norm``, and adds up nothing in ``aten.index_put`` but along first axes. They become operators on
elements, means and a product; and so does ``aten.layer_norm`` with a weight that is trained, as the converter's has
constants alone. ``aten.index_add``, which it has not, is ``aten.index_put`` along the first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torchao.quantization.quant_primitives  # noqa: F401  (registers torchao's operators)
from torch.fx import Graph, Node

from zoexport.core import int4
from zoexport.core.types import Program
from zoexport.ir.graphs import (
    arguments,
    aten,
    call,
    placeholders,
    remove_unused_weights,
    shape_of,
    weight_input,
    zo,
)
from zoexport.ir.rewrite import Replaced, rewrite
from zoexport.targets.executorch.gelu import tanh_gelu
from zoexport.targets.rules import packet_of


def write_for_coreml(
    program: Program, weights: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Rewrite a program whose sizes are numbers.

    Returns:
        The values of its weight inputs: those of ``weights`` that are left, and those that rules made.
    """
    rules = _CoremlRules(program, weights)
    rules.run()
    return {value.name: rules.weights[value.name] for value in program.weights()}


class _CoremlRules:
    """Rewrites one program; ``weights`` gets what rules make."""

    def __init__(self, program: Program, weights: Mapping[str, torch.Tensor]) -> None:
        self.program = program
        self.weights = dict(weights)
        self.names = {node: name for name, node in placeholders(program).items()}
        self.numbers: dict[Node, Node] = {}

    @property
    def nodes(self) -> Graph:
        return self.program.module.graph

    def run(self) -> None:
        """Apply every rule to every node that it names."""
        self.inputs_first()
        rules: dict[Any, Callable[..., Replaced]] = {
            **dict.fromkeys((zo.dequantize_int4, zo.dequantize_int8), self.dequantized),
            **dict.fromkeys((zo.linear_int4, zo.linear_int8), self.linear),
            **dict.fromkeys(
                (zo.linear_int4_input_gradient, zo.linear_int8_input_gradient), self.input_gradient
            ),
            zo.embedding_int4: self.embedding,
            zo.label_gradient: self.label_gradient,
            zo.label_logprobs: self.label_logprobs,
            aten.gelu: self.gelu,
            aten.layer_norm: self.trained_layer_norm,
            aten.native_layer_norm: self.layer_norm,
            aten.index_add: self.index_add,
            aten.index_put: self.index_put,
        }

        def rule(node: Node) -> Replaced:
            return rules[packet_of(node)](*arguments(node), **node.kwargs)

        rewrite(self.program, [(tuple(rules), rule)])
        remove_unused_weights(self.program)
        self.program.module.recompile()

    def inputs_first(self) -> None:
        """Move inputs before all calls, as rules read new inputs wherever they are."""
        first = next(node for node in self.nodes.nodes if node.op != "placeholder")
        for node in self.names:
            first.prepend(node)

    def dequantized(self, codes: Node, scales: Node) -> Node:
        """A quantized weight as numbers (N, K), one call for all that read it."""
        if codes not in self.numbers:
            name = self.names[codes]
            stored, numbers = self.weights[name], self.weights[self.names[scales]].float()
            whole = stored.dtype == torch.int8
            limits = (-128, 127) if whole else (-8, 7)
            stored = stored if whole else int4.unpack_int4(stored)
            numbers = numbers[:, None].contiguous() if whole else numbers
            first = next(node for node in self.nodes.nodes if node.op != "placeholder")
            with self.nodes.inserting_before(first):
                self.numbers[codes] = self.call(
                    torch.ops.torchao.dequantize_affine.default,
                    self.constant(f"{name}.int8", stored),
                    [1, stored.shape[1] // numbers.shape[1]],
                    self.constant(f"{name}.fp32", numbers),
                    None,
                    torch.int8,
                    *limits,
                )
        return self.numbers[codes]

    def linear(self, x: Node, codes: Node, scales: Node, bias: Node | None) -> Node:
        """linear_int4, linear_int8: linear over numbers."""
        return self.call(aten.linear.default, x, self.dequantized(codes, scales), bias)

    def input_gradient(self, dy: Node, codes: Node, scales: Node) -> Node:
        """Their gradients: a product with the same numbers."""
        return self.call(aten.matmul.default, dy, self.dequantized(codes, scales))

    def embedding(self, codes: Node, scales: Node, indices: Node) -> Node:
        """embedding_int4: rows of numbers."""
        return self.call(aten.embedding.default, self.dequantized(codes, scales), indices)

    def gelu(self, x: Node, approximate: str = "none") -> Node | None:
        """gelu: that by tanh in operators on elements."""
        return None if approximate == "none" else tanh_gelu(self.call, x)

    def index_add(self, x: Node, dim: int, index: Node, values: Node) -> Node:
        """index_add: index_put over the first axis, where the converter has one that adds up."""
        first = self.call(aten.transpose.int, x, 0, dim)
        given = self.call(aten.transpose.int, values, 0, dim)
        added = self.call(aten.index_put.default, first, [index], given, True)
        return self.call(aten.transpose.int, added, 0, dim)

    def index_put(
        self, x: Node, indices: list[Node | None], values: Node, accumulate: bool = False
    ) -> Node | None:
        """index_put that adds up, at constant places of one dimension: a product with ones at those places."""
        (dim, index), *others = [pair for pair in enumerate(indices) if pair[1] is not None]
        if not accumulate or others or index not in self.names:
            return None
        places, rank = self.weights[self.names[index]], len(shape_of(x))
        ones = torch.zeros(len(places), shape_of(x)[dim])
        ones[torch.arange(len(places)), places] = 1
        order = [axis for axis in range(rank) if axis != dim] + [dim]
        moved = self.call(aten.permute.default, values, order)
        ones_node = self.constant(f"{self.names[index]}.ones{shape_of(x)[dim]}", ones)
        added = self.call(aten.matmul.default, moved, ones_node)
        back = [order.index(axis) for axis in range(rank)]
        return self.call(aten.add.Tensor, x, self.call(aten.permute.default, added, back))

    def trained_layer_norm(
        self,
        x: Node,
        shape: list[int],
        weight: Node | None = None,
        bias: Node | None = None,
        eps: float = 1e-5,
        *_: object,
    ) -> Node | None:
        """layer_norm with a weight or bias that is no constant."""
        if all(part is None or self.names.get(part) in self.weights for part in (weight, bias)):
            return None
        return self.layer_norm(x, shape, weight, bias, eps)[0]

    def layer_norm(
        self, x: Node, shape: list[int], weight: Node | None, bias: Node | None, eps: float
    ) -> tuple[Node, Node, Node]:
        """native_layer_norm: the normalized rows, and the mean and 1 / standard deviation that its gradient reads."""
        axes = list(range(-len(shape), 0))
        mean = self.call(aten.mean.dim, x, axes, True)
        centered = self.call(aten.sub.Tensor, x, mean)
        square = self.call(aten.mul.Tensor, centered, centered)
        spread = self.call(aten.add.Tensor, self.call(aten.mean.dim, square, axes, True), eps)
        scale = self.call(aten.rsqrt.default, spread)
        made = self.call(aten.mul.Tensor, centered, scale)
        made = made if weight is None else self.call(aten.mul.Tensor, made, weight)
        return made if bias is None else self.call(aten.add.Tensor, made, bias), mean, scale

    def label_logprobs(self, logits: Node, tokens: Node) -> tuple[Node, Node]:
        """logits (..., M, V), tokens (M) -> log-probabilities and whether the label is the argmax, (..., M) fp32."""
        *outer, count, _ = shape_of(logits)
        index = self.call(aten.unsqueeze.default, tokens, -1)
        wide = self.call(aten.expand.default, index, [*outer, count, 1])
        chosen = self.call(aten.gather.default, logits, -1, wide)
        chosen = self.call(aten.squeeze.dim, chosen, -1)
        total = self.call(aten.logsumexp.default, logits, [-1])
        best = self.call(aten.argmax.default, logits, -1)
        logprobs = self.call(aten.sub.Tensor, chosen, total)
        return logprobs, self.is_equal(best, tokens)

    def label_gradient(self, logits: Node, tokens: Node, weights: Node) -> tuple[Node, ...]:
        """logits (M, V) -> the results of :meth:`label_logprobs`, and weight * (onehot - softmax) (M, V)."""
        places = self.constant("places", torch.arange(shape_of(logits)[-1]))
        index = self.call(aten.unsqueeze.default, tokens, -1)
        softmax = self.call(aten._softmax.default, logits, -1, False)
        gradient = self.call(aten.sub.Tensor, self.is_equal(places, index), softmax)
        column = self.call(aten.unsqueeze.default, weights, -1)
        gradient = self.call(aten.mul.Tensor, gradient, column)
        return *self.label_logprobs(logits, tokens), gradient

    def is_equal(self, a: Node, b: Node) -> Node:
        """1 where two integers are equal, else 0, as fp32."""
        equal = self.call(aten.eq.Tensor, a, b)
        return self.call(aten._to_copy.default, equal, dtype=torch.float32)

    def call(self, operator: Any, *args: Any, **kwargs: Any) -> Node:
        """A call at the graph's insertion point."""
        return call(self.nodes, operator, *args, **kwargs)

    def constant(self, name: str, tensor: torch.Tensor) -> Node:
        """A weight input that holds ``tensor``."""
        self.weights[name] = tensor
        return weight_input(self.program, name, tensor)
