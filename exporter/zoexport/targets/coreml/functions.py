"""Programs as functions of a Core ML package, built operation by operation."""

from __future__ import annotations

from typing import Any

import coremltools as ct
import torch
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Var, types
from torch.fx import Node

from zoexport.core.coreml_names import feature_name, result_name
from zoexport.core.graph import Program, Value
from zoexport.ir.graphs import is_call, output_node, placeholders, zo
from zoexport.targets.coreml import elementwise, products, shapes
from zoexport.targets.coreml.values import FP16, FP32, cast, constant
from zoexport.targets.coreml.weights import Packed, Place, Weights
from zoexport.targets.rules import Rule, apply_rule
from zoexport.targets.slot_gradients import LEAST

_FLOATS = {
    **elementwise.elementwise(),
    **shapes.shapes(),
    **shapes.reductions(),
    zo.label_logprobs: products.label_logprobs,
}


class FunctionBuilder:
    """Builds one function.

    Args:
        program: with numbers for sizes.
        weights: of the program; the function computes in their type.

    Attributes:
        places: of the weights, once the function is built.
    """

    def __init__(self, program: Program, weights: Weights) -> None:
        self.program = program
        self.weights = weights
        self.kind = weights.kind
        self.places: list[Place] = []
        self.count = 0
        self.rules: dict[Any, Rule] = {
            **_FLOATS,
            **products.products(self.kind),
            zo.label_gradient: self._gradient,
        }
        self.scale: Var | None = None

    def build(self) -> Function:
        """Build the function: every argument and result under its :func:`feature_name`.

        Raises:
            LoweringError: an operator without a rule, or with arguments that its rule does not take.
        """
        arguments = self.program.arguments()
        inputs = {
            feature_name(value.name): mb.placeholder(value.sizes(), dtype=_taken(value))
            for value in arguments
        }
        with Function(inputs, opset_version=ct.target.iOS18) as function:
            given = {value.name: function.inputs[feature_name(value.name)] for value in arguments}
            results = self._results(self._scaled(given))
            function.set_outputs(
                [
                    mb.identity(x=result, name=result_name(value.name))
                    for value, result in zip(self.program.outputs, results, strict=True)
                ]
            )
        return function

    def _results(self, given: dict[str, Var]) -> list[Var]:
        values: dict[Node, Any] = {}
        for name, node in placeholders(self.program).items():
            values[node] = given[name] if name in given else self._weight(name)
        for node in self.program.module.graph.nodes:
            if node.op == "call_function":
                values[node] = apply_rule(
                    self.program, node, self.rules, values.__getitem__, "Core ML"
                )
        returned: Any = output_node(self.program.module).args[0]
        found = []
        for value, node in zip(self.program.outputs, returned, strict=True):
            result = cast(values[node], FP32)
            if self.scale is not None and value.role.endswith("_gradient"):
                result = mb.mul(x=result, y=self.scale)
            found.append(mb.reshape(x=cast(result, _taken(value)), shape=list(value.sizes())))
        return found

    def _weight(self, name: str) -> Any:
        """Return a weight as a constant with a unique name, to find it in the package."""
        if self.weights.is_scales(name):
            return self._scales(name)
        self.count += 1
        operation = f"frozen_{self.count}"
        if self.weights.is_codes(name):
            return Packed(self.weights, name, operation, self.places)
        array = self.weights.stored(name)
        made = mb.const(val=array if array.ndim else array[()], name=operation)
        made.op.weight_id = self.weights.identity(name)
        self.places.append(Place(operation, "val", name))
        return made

    def _scales(self, name: str) -> Var | None:
        """The scales of a packed weight whose rows are scaled already: ones, where a program scales a table's rows."""
        readers = placeholders(self.program)[name].users
        if all(is_call(node, *products.READ_PACKED) for node in readers):
            return None
        count = self.weights.values[name].shape[0]
        return constant(torch.ones(count), self.kind, shared=f"ones.{count}")

    def _scaled(self, given: dict[str, Var]) -> dict[str, Var]:
        """In fp16, gradients over their largest element, which it reaches always.

        A backward program is linear in the gradients that it is given, so its results are multiplied by that again.
        """
        roles = {value.name: value.role for value in self.program.inputs}
        gradients = [name for name in given if roles[name] == "output_gradient"]
        if self.kind == FP16 and gradients:
            self.scale = _largest([given[name] for name in gradients])
        return {
            name: mb.real_div(x=value, y=self.scale)
            if self.scale is not None and name in gradients
            else value
            for name, value in given.items()
        }

    def _gradient(self, logits: Var, tokens: Var, weights: Var) -> tuple[Var, Var, Var]:
        logprobs, hit, gradient = products.label_gradient(logits, tokens, weights)
        if self.kind == FP16:
            self.scale = _largest([gradient])
            gradient = mb.real_div(x=gradient, y=self.scale)
        return logprobs, hit, gradient


def _largest(gradients: list[Var]) -> Var:
    """Return the largest magnitude of all elements, and never zero."""
    found = [mb.reduce_max(x=mb.abs(x=one), keep_dims=False) for one in gradients]
    most = found[0]
    for one in found[1:]:
        most = mb.maximum(x=most, y=one)
    return mb.maximum(x=most, y=LEAST)


def _taken(value: Value) -> Any:
    return {"int64": types.int32, "float16": FP16}.get(value.dtype, FP32)
