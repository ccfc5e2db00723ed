"""vulkan_rules: say the same with operators that ExecuTorch's Vulkan delegate has, in the forms that it computes.

Its partitioner looks at operators and types. What the delegate needs besides is in its sources, and otherwise shows
only on a phone: ``aten.linear``, ``et_vk.linear_q4gsw`` and ``et_vk.embedding_q4gsw`` take constant weights alone, and
rows in two dimensions; so do the weights of a fused norm, and of layer_norm, have to be constants. Products of two
computed matrices are ``aten.bmm``, of three dimensions.

A weight is a constant in a program of a whole model. Before, and after::

    y = aten.linear(x, zoexport.dequantize_int4(codes, scales))      # x (2, 24, 64)
    y = aten.reshape(et_vk.linear_q4gsw(aten.reshape(x, [48, 64]), codes, scales_T, 32), [2, 24, N])

A weight is an input in a program of single layers, bound by stage. Before, and after::

    y = zoexport.linear_int4(x, codes, scales, None)
    w = zoexport.embedding_int4(codes, scales, rows)               # on the CPU, once for a weight; rows = 0, 1, ...
    y = aten.permute(aten.bmm(w, aten.permute(x)))                   # x is smaller than w, so x is turned and not w
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch
from torch.fx import Graph, Node

from zoexport.core import int4
from zoexport.core.types import Program, TrainingGraph, Value
from zoexport.ir.graphs import (
    RESHAPES,
    arguments,
    aten,
    call,
    is_call,
    operand,
    placeholders,
    remove_unused_weights,
    shape_of,
    weight_input,
    zo,
)
from zoexport.ir.rewrite import Rule, merge_reshapes, reshaped, rewrite
from zoexport.targets.executorch.row_rules import decompose


def write_for_vulkan(graph: TrainingGraph, program: Program) -> dict[str, torch.Tensor]:
    """Rewrite a program whose sizes are numbers.

    Returns:
        Constants that it has beside ``graph.weights``, by the name of their input.
    """
    register_operators()
    rules = VulkanRules(graph, program)
    rewrite(program, [((aten.linear,), rules.quantized_linear)])
    remove_unused_weights(program)
    program.module.recompile()
    decompose(program)
    rules.run()
    return rules.constants


def register_operators() -> None:
    """Make the delegate's own operators known to torch."""
    level = logging.root.level
    import executorch.backends.vulkan.custom_ops_lib  # noqa: F401
    import torchao.quantization.quant_primitives  # noqa: F401

    # ExecuTorch's module makes everybody's logging louder.
    logging.root.setLevel(level)


class VulkanRules:
    """Rewrites one program, already decomposed but for quantized products.

    ``bound``: its weights are inputs that stages bind, and not constants.
    """

    def __init__(self, graph: TrainingGraph, program: Program) -> None:
        self.graph = graph
        self.program = program
        self.bound = not graph.whole
        self.constants: dict[str, torch.Tensor] = {}
        self.unpacked: dict[Node, Node] = {}

    @property
    def nodes(self) -> Graph:
        """The graph as it is now: decomposing makes another one."""
        return self.program.module.graph

    def run(self) -> None:
        """Apply every rule to every node that it names."""
        rules: list[tuple[tuple[object, ...], Rule]] = [
            ((zo.linear_int4,), self.linear_int4),
            ((zo.linear_int8,), self.linear_int8),
            ((zo.linear_int4_input_gradient,), self.int4_gradient),
            ((zo.linear_int8_input_gradient,), self.int8_gradient),
            ((zo.embedding_int4,), self.embedding),
            ((aten.mm,), self.product),
            ((aten.mul.Scalar, aten.div.Scalar), self.by_number),
            ((aten.index,), self.index),
            ((aten.slice_scatter,), self.slice_scatter),
        ]
        rewrite(self.program, rules)
        merge_reshapes(self.program)
        for node in self.nodes.nodes:
            if is_call(node, *RESHAPES):
                node.target = aten.reshape.default
        remove_unused_weights(self.program)
        self.program.module.recompile()

    def quantized_linear(self, node: Node) -> Node | None:
        """linear over dequantize_int4 or dequantize_int8: one operator, which decomposing leaves whole."""
        x, weight, *rest = arguments(node)
        found = {
            zo.dequantize_int4.default: zo.linear_int4.default,
            zo.dequantize_int8.default: zo.linear_int8.default,
        }
        for dequantize, linear in found.items():
            if is_call(weight, dequantize):
                return call(self.nodes, linear, x, *arguments(weight), rest[0] if rest else None)
        return None

    def linear_int4(self, node: Node) -> Node:
        """linear_int4: the delegate's own over constants, else a product with what a kernel of ours unpacks."""
        x, codes, scales, bias = arguments(node)
        if self.bound:
            return self._biased(self._times_turned(x, self._table(codes, scales)), bias, node)
        count, groups = shape_of(scales)
        width = 2 * shape_of(codes)[1]
        numbers = call(
            self.nodes,
            torch.ops.torchao.dequantize_affine.default,
            self._constant(codes, "int8", int4.unpack_int4),
            [1, width // groups],
            self._constant(scales, "fp32", lambda tensor: tensor.float()),
            self._input(f"zeros.{count}x{groups}", torch.zeros(count, groups, dtype=torch.int8)),
            torch.int8,
            -8,
            7,
        )
        # The delegate's pattern leaves out a reshape of its input. The copy, which goes later, keeps this one.
        rows = call(self.nodes, aten.clone.default, self._rows(x))
        made = call(
            self.nodes,
            aten.mm.default,
            rows,
            call(self.nodes, aten.permute.default, numbers, [1, 0]),
        )
        return self._biased(made, bias, node)

    def linear_int8(self, node: Node) -> Node:
        """linear_int8: the same; the delegate's own takes one scale for each output."""
        x, codes, scales, bias = arguments(node)
        return self._biased(self._times_turned(x, self._table(codes, scales)), bias, node)

    def int4_gradient(self, node: Node) -> Node:
        """linear_int4_input_gradient: a product with what a kernel of ours unpacks."""
        dy, codes, scales = arguments(node)
        return self._times(dy, self._table(codes, scales))

    def int8_gradient(self, node: Node) -> Node:
        """linear_int8_input_gradient: likewise."""
        dy, codes, scales = arguments(node)
        return self._times(dy, self._table(codes, scales))

    def embedding(self, node: Node) -> Node | None:
        """embedding_int4: the delegate's own over constants; over bound weights a kernel of ours reads single rows."""
        codes, scales, indices = arguments(node)
        if self.bound:
            return None
        group = 2 * shape_of(codes)[1] // shape_of(scales)[1]
        # Not those of a product with the same weight, which the delegate turns.
        flat = self._constant(scales, "table", lambda tensor: tensor.float())
        return call(
            self.nodes,
            torch.ops.et_vk.embedding_q4gsw.default,
            codes,
            flat,
            group,
            indices,
            True,
        )

    def product(self, node: Node) -> Node | None:
        """mm of computed matrices: bmm. With a constant it stays, and the delegate makes it a linear layer."""
        a, b = arguments(node)[:2]
        source = b
        while is_call(source, aten.permute, aten.t, *RESHAPES):
            source = operand(source)
        if not self.bound and (
            is_call(source, torch.ops.torchao.dequantize_affine)
            or (source.op == "placeholder" and self._value(source).role == "weight")
        ):
            return None
        if is_call(b, aten.permute, aten.t) and len(b.users) == 1:
            return self._times_turned(a, operand(b))
        return self._times(a, b)

    def by_number(self, node: Node) -> Node:
        """mul and div by a number: by a tensor of it."""
        overload = aten.mul.Tensor if is_call(node, aten.mul) else aten.div.Tensor
        return call(self.nodes, overload, *arguments(node))

    def index(self, node: Node) -> Node | None:
        """index along one dimension: index_select, as the delegate's index knows the first dimension alone."""
        source, indices = arguments(node)
        (dim, chosen), *others = [pair for pair in enumerate(indices) if pair[1] is not None]
        if others or len(shape_of(chosen)) != 1:
            return None
        return call(self.nodes, aten.index_select.default, source, dim, chosen)

    def slice_scatter(self, node: Node) -> Node | None:
        """slice_scatter into zeros: the part, padded."""
        base, part, *given = arguments(node)
        if not is_call(base, aten.full, aten.zeros) or (
            is_call(base, aten.full) and arguments(base)[1] != 0
        ):
            return None
        dim = (given[0] if given else 0) % len(shape_of(node))
        start = (given[1] if len(given) > 1 else 0) or 0
        after = shape_of(node)[dim] - start - shape_of(part)[dim]
        pads = [0, 0] * (len(shape_of(node)) - 1 - dim) + [start, after]
        return call(self.nodes, aten.constant_pad_nd.default, part, pads, 0.0)

    def _table(self, codes: Node, scales: Node) -> Node:
        """A quantized weight as numbers (N, K)."""
        if codes not in self.unpacked:
            first = next(node for node in self.nodes.nodes if node.op != "placeholder")
            with self.nodes.inserting_before(first):
                self.unpacked[codes] = self._unpacked(codes, scales)
        return self.unpacked[codes]

    def _unpacked(self, codes: Node, scales: Node) -> Node:
        if codes.meta["val"].dtype == torch.int8:
            column = call(self.nodes, aten.view.default, scales, [-1, 1])
            numbers = call(self.nodes, aten._to_copy.default, codes, dtype=torch.float32)
            return call(self.nodes, aten.mul.Tensor, numbers, column)
        count = shape_of(codes)[0]
        rows = self._input(f"rows.{count}", torch.arange(count))
        return call(self.nodes, zo.embedding_int4.default, codes, scales, rows)

    def _times(self, x: Node, matrix: Node) -> Node:
        """x (..., n) times matrix (n, m), by three dimensions."""
        sizes = shape_of(x)
        left = reshaped(x, (1, math.prod(sizes[:-1]), sizes[-1]))
        right = reshaped(matrix, (1, *shape_of(matrix)))
        made = call(self.nodes, aten.bmm.default, left, right)
        return reshaped(made, (*sizes[:-1], shape_of(matrix)[1]))

    def _times_turned(self, x: Node, matrix: Node) -> Node:
        """x (..., n) times the transpose of matrix (m, n): the smaller of the two is turned."""
        sizes, (columns, width) = shape_of(x), shape_of(matrix)
        count = math.prod(sizes[:-1])
        rows = reshaped(x, (1, count, width))
        whole = reshaped(matrix, (1, columns, width))
        if count < columns:
            turned = call(self.nodes, aten.permute.default, rows, [0, 2, 1])
            made = call(self.nodes, aten.bmm.default, whole, turned)
            made = call(self.nodes, aten.permute.default, made, [0, 2, 1])
        else:
            turned = call(self.nodes, aten.permute.default, whole, [0, 2, 1])
            made = call(self.nodes, aten.bmm.default, rows, turned)
        return reshaped(made, (*sizes[:-1], columns))

    def _biased(self, product: Node, bias: Node | None, like: Node) -> Node:
        made = product if bias is None else call(self.nodes, aten.add.Tensor, product, bias)
        return reshaped(made, shape_of(like))

    def _rows(self, x: Node) -> Node:
        """x (..., n) as (rows, n)."""
        sizes = shape_of(x)
        return reshaped(x, (math.prod(sizes[:-1]), sizes[-1]))

    def _value(self, node: Node) -> Value:
        named = zip(self.program.inputs, placeholders(self.program).values(), strict=True)
        return next(value for value, placeholder in named if placeholder is node)

    def _constant(
        self, node: Node, suffix: str, made: Callable[[torch.Tensor], torch.Tensor]
    ) -> Node:
        """A constant made from the weight ``node``."""
        name = self._value(node).name
        known = f"{name}.{suffix}"
        if known not in self.graph.weights:
            self.graph.weights[known] = made(self.graph.weights[name])
        return self._input(known, self.graph.weights[known])

    def _input(self, name: str, tensor: torch.Tensor) -> Node:
        if name not in placeholders(self.program):
            self.constants[name] = tensor
        return weight_input(self.program, name, tensor)
