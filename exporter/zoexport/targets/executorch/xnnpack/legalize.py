"""legalize: say the same with operators that XNNPACK has, so that a program stays in one delegate.

Each rule states the operator it replaces and what stands there afterwards. Shapes are static except the number of
labels, which only the output head sees.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import operator

import torch
import torchao.quantization.quant_primitives  # noqa: F401  (registers torchao's operators)
from torch.fx import Graph, Node

from zoexport.core import hadamard
from zoexport.core.types import Program, TrainingGraph, Value
from zoexport.ir.graphs import (
    RESHAPES,
    add_input,
    arguments,
    aten,
    call,
    is_call,
    operand,
    placeholders,
    remove_unused_weights,
    shape_of,
    zo,
)
from zoexport.ir.lengths import follows
from zoexport.ir.rewrite import Rule, reshaped, rewrite
from zoexport.targets.executorch.gelu import tanh_gelu

_torchao = torch.ops.torchao
_WIDEST_SELECTION = 256
"""The head sizes of models; wider rows would make a product that selects expensive."""


class Legalizer:
    """Rewrites one program; constants that rules need become weights of ``graph``."""

    def __init__(self, graph: TrainingGraph, program: Program) -> None:
        self.graph = graph
        self.program = program
        self.nodes: Graph = program.module.graph
        self.constants: dict[str, Node] = {}

    def run(self) -> None:
        """Apply every rule to every node that it names."""
        rules: list[tuple[tuple[object, ...], Rule]] = [
            ((aten.linear,), self.quantized_linear),
            ((zo.rotate_rows,), self.rotate_rows),
            ((aten.split, aten.split_with_sizes, aten.chunk), self.split),
            ((aten.cat,), self.cat),
            ((aten.cat,), self.halves),
            ((aten.slice,), self.selection),
            ((aten.layer_norm,), self.layer_norm),
            ((aten.mean,), self.mean),
            ((aten.repeat,), self.repeat),
            ((aten.matmul,), self.matmul),
            ((aten.unsqueeze, aten.squeeze), self.reshape),
            ((aten.pow,), self.power),
            ((aten.rsub,), self.reversed_subtraction),
            ((aten.gelu,), self.gelu),
        ]
        rewrite(self.program, rules)
        _merge_reshapes(self.program)
        self.nodes.eliminate_dead_code()
        remove_unused_weights(self.program)
        self.program.module.recompile()

    def constant(self, name: str, value: torch.Tensor) -> Node:
        """A weight input holding ``value``, shared by name."""
        if name not in self.constants:
            self.graph.weights.setdefault(name, value)
            dtype = str(value.dtype).removeprefix("torch.")
            self.constants[name] = add_input(
                self.program, Value(name, "weight", dtype, tuple(value.shape))
            )
        return self.constants[name]

    def quantized_linear(self, node: Node) -> Node | None:
        """linear over dequantize_int4: our kernel; over dequantize_int8 of rounded rows: torchao's pattern."""
        x, weight, *rest = arguments(node)
        bias = rest[0] if rest else None
        if is_call(weight, zo.dequantize_int4.default):
            return call(self.nodes, zo.linear_int4.default, x, *arguments(weight), bias)
        if not is_call(x, zo.fake_quantize_int8_rows.default):
            return None
        codes, scales = arguments(weight)
        source = operand(x)
        out_features, in_features = shape_of(weight)
        zero_points = self.constant(
            f"zero_points.{out_features}", torch.zeros(out_features, 1, dtype=torch.int8)
        )
        row = [*[1] * (len(shape_of(source)) - 1), in_features]
        limits = (torch.int8, -128, 127)
        parameters = call(
            self.nodes,
            _torchao.choose_qparams_affine.default,
            source,
            "ASYMMETRIC",
            row,
            *limits,
            None,
            None,
            torch.int8,
        )
        scale = call(self.nodes, operator.getitem, parameters, 0)
        zero = call(self.nodes, operator.getitem, parameters, 1)
        quantized = call(
            self.nodes, _torchao.quantize_affine.default, source, row, scale, zero, *limits
        )
        inputs = call(
            self.nodes, _torchao.dequantize_affine.default, quantized, row, scale, zero, *limits
        )
        weights = call(
            self.nodes,
            _torchao.dequantize_affine.default,
            codes,
            [1, in_features],
            self._column(scales),
            zero_points,
            torch.int8,
            -127,
            127,
        )
        return call(self.nodes, aten.linear.default, inputs, weights, bias)

    def _column(self, scales: Node) -> Node:
        (name,) = (name for name, node in placeholders(self.program).items() if node is scales)
        return self.constant(f"{name}.column", self.graph.weights[name].unsqueeze(1))

    def rotate_rows(self, node: Node) -> Node:
        """rotate_rows: reshape, a product with the Hadamard matrix, reshape."""
        source, block = operand(node), hadamard.BLOCK
        shape = shape_of(source)
        rotation = self.constant("hadamard", hadamard.matrix())
        # -1: of chosen rows it is the number of labels.
        rows = (*shape[:-2], -1)
        blocks = reshaped(source, (*rows, shape[-1] // block, block))
        turned = call(self.nodes, aten.linear.default, blocks, rotation)
        return reshaped(turned, (*rows, shape[-1]))

    def split(self, node: Node) -> tuple[Node, ...]:
        """split, chunk: one slice for each part."""
        given = arguments(node)
        source = given[0]
        dim = given[2] if len(given) > 2 else node.kwargs.get("dim", 0)
        ends = [0, *itertools.accumulate(part.shape[dim] for part in node.meta["val"])]
        return tuple(
            call(self.nodes, aten.slice.Tensor, source, dim, begin, end)
            for begin, end in itertools.pairwise(ends)
        )

    def cat(self, node: Node) -> Node | None:
        """cat with parts of no elements (a rotary embedding of whole heads): without them."""
        parts, *dim = arguments(node)
        full = [part for part in parts if isinstance(part, Node) and part.meta["val"].numel()]
        if len(full) == len(parts):
            return None
        return full[0] if len(full) == 1 else call(self.nodes, aten.cat.default, full, *dim)

    def halves(self, node: Node) -> Node | None:
        """cat of (negated) slices of one value along the last dimension: a product that selects, with signs.

        For rows of any length, which XNNPACK cannot slice; the halves of a rotary embedding are of this kind.
        """
        parts, *dim = arguments(node)
        if dim not in ([-1], [len(shape_of(node)) - 1]):
            return None
        signed = [
            (operand(part), -1.0) if is_call(part, aten.neg) else (part, 1.0) for part in parts
        ]
        sources = {operand(part) for part, _ in signed if is_call(part, aten.slice)}
        if len(sources) != 1 or any(self._columns(part) is None for part, _ in signed):
            return None
        (source,) = sources
        rows = [
            sign * torch.eye(shape_of(source)[-1])[self._columns(part)] for part, sign in signed
        ]
        return self._selected(source, torch.cat(rows))

    def selection(self, node: Node) -> Node | None:
        """slice along the last dimension, of rows of any length: a product that selects."""
        columns, source = self._columns(node), operand(node)
        if columns is None:
            return None
        return self._selected(source, torch.eye(shape_of(source)[-1])[columns])

    def _columns(self, node: object) -> slice | None:
        """What a slice takes of each row, where the rows are of any length and short enough for a product."""
        if not self.graph.any_length or not is_call(node, aten.slice):
            return None
        source, *given = arguments(node)
        dim, start, end, step = given + [0, None, None, 1][len(given) :]
        shape = shape_of(source)
        follow = any(follows(size, self.graph.length) for size in shape)
        last = dim in (-1, len(shape) - 1) and step == 1
        if not (follow and last and shape[-1] <= _WIDEST_SELECTION) or source.op == "placeholder":
            return None
        return slice(start, end)

    def _selected(self, source: Node, rows: torch.Tensor) -> Node:
        digest = hashlib.sha256(rows.numpy().tobytes()).hexdigest()[:16]
        shape = "x".join(str(size) for size in rows.shape)
        return call(
            self.nodes, aten.linear.default, source, self.constant(f"select.{shape}.{digest}", rows)
        )

    def mean(self, node: Node) -> Node | None:
        """mean over the last dimension: a product with a constant vector of 1/n."""
        source, dims, *rest = arguments(node)
        shape = shape_of(source)
        if node.kwargs or dims not in ([-1], [len(shape) - 1], -1):
            return None
        kept = self._mean(source)
        return kept if rest and rest[0] else reshaped(kept, shape[:-1])

    def _mean(self, source: Node) -> Node:
        width = shape_of(source)[-1]
        average = self.constant(f"mean.{width}", torch.full((1, width), 1.0 / width))
        return call(self.nodes, aten.linear.default, source, average)

    def layer_norm(self, node: Node) -> Node | None:
        """layer_norm over the last dimension: means, a difference and rsqrt."""
        given = arguments(node)[:5]
        defaults = (None, None, None, None, 1e-5)
        source, normalized, weight, bias, eps = given + defaults[len(given) :]
        if list(normalized) != [shape_of(source)[-1]]:
            return None
        insert = self.nodes
        centered = call(insert, aten.sub.Tensor, source, self._mean(source))
        variance = self._mean(call(insert, aten.mul.Tensor, centered, centered))
        scale = call(insert, aten.rsqrt.default, call(insert, aten.add.Tensor, variance, eps))
        result = call(insert, aten.mul.Tensor, centered, scale)
        if weight is not None:
            result = call(insert, aten.mul.Tensor, result, weight)
        return call(insert, aten.add.Tensor, result, bias) if bias is not None else result

    def repeat(self, node: Node) -> Node | None:
        """repeat along the first dimension: a product with a column of ones, which broadcasts.

        (XNNPACK's concatenation does not take one tensor several times.)
        """
        source, factors = arguments(node)
        if any(factor != 1 for factor in factors[1:]):
            return None
        times = int(factors[0])
        ones = self.constant(f"ones.{times}", torch.ones(times, 1))
        flat = reshaped(source, (1, source.meta["val"].numel()))
        return reshaped(call(self.nodes, aten.mul.Tensor, ones, flat), shape_of(node))

    def matmul(self, node: Node) -> Node | None:
        """matmul of equal batch dimensions: reshape, bmm, reshape. Of a matrix: bmm with a batch of one."""
        left, right = operand(node), operand(node, 1)
        a, b = shape_of(left), shape_of(right)
        if len(b) == 2:
            product = call(
                self.nodes,
                aten.bmm.default,
                reshaped(left, (1, -1, a[-1])),
                reshaped(right, (1, *b)),
            )
        elif len(a) == len(b) and a[:-2] == b[:-2]:
            product = call(
                self.nodes,
                aten.bmm.default,
                reshaped(left, (-1, *a[-2:])),
                reshaped(right, (-1, *b[-2:])),
            )
        else:
            return None
        *outer, _, columns = shape_of(node)
        # -1: of chosen rows it is the number of labels.
        return reshaped(product, (*outer, -1, columns))

    def reshape(self, node: Node) -> Node:
        """unsqueeze and squeeze: reshape."""
        return reshaped(operand(node), shape_of(node))

    def power(self, node: Node) -> Node | None:
        """pow by 2 and 3: products."""
        source, exponent = node.args
        if exponent not in (2, 3, 2.0, 3.0):
            return None
        square = call(self.nodes, aten.mul.Tensor, source, source)
        if exponent in (2, 2.0):
            return square
        return call(self.nodes, aten.mul.Tensor, square, source)

    def reversed_subtraction(self, node: Node) -> Node | None:
        """rsub by a number: negate and add."""
        source, number = node.args[:2]
        if isinstance(number, Node) or len(node.args) > 2:
            return None
        negative = call(self.nodes, aten.neg.default, source)
        return call(self.nodes, aten.add.Tensor, negative, number)

    def gelu(self, node: Node) -> Node | None:
        """gelu with approximate="tanh": written out, as the delegate would compute the exact one."""
        if node.kwargs.get("approximate", "none") == "none":
            return None
        return tanh_gelu(functools.partial(call, self.nodes), operand(node))


def _merge_reshapes(program: Program) -> None:
    """Join each chain of reshapes into one, and remove reshapes and expands that change nothing."""
    for node in list(program.module.graph.nodes):
        if is_call(node, *RESHAPES):
            source = operand(node)
            while is_call(source, *RESHAPES):
                source = operand(source)
            node.update_arg(0, source)
            # -1 is the number of labels, which is recorded as an example's.
            same = shape_of(source) == shape_of(node) and -1 not in arguments(node)[1]
        else:
            same = is_call(node, aten.expand) and shape_of(operand(node)) == shape_of(node)
        if same:
            node.replace_all_uses_with(operand(node))
