"""One function of a package: its operations in the order they run, and what each of them frees."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from zoexport.core.errors import BundleError, first_line, nearest
from zoexport.testing.operands import Operands
from zoexport.testing.operations import RULES
from zoexport.testing.values import Constant, TensorType, Value, constant, tensor_type
from zoexport.testing.weights import WeightFile

_CONST = "const"
#: Operations on constants only, which run just before their first reader.
_CONSTEXPR = "constexpr_"


@dataclasses.dataclass(frozen=True)
class Feature:
    """An input or output of a function. A size is None if any size is accepted."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class _Operation:
    """An operation. An operand is a name, or an inline constant."""

    kind: str
    name: str
    operands: Mapping[str, Sequence[str | Constant]]
    results: Mapping[str, TensorType]

    @property
    def reads(self) -> set[str]:
        return {part for parts in self.operands.values() for part in parts if isinstance(part, str)}

    @property
    def is_constant(self) -> bool:
        return self.kind == _CONST or self.kind.startswith(_CONSTEXPR)


@dataclasses.dataclass(frozen=True)
class _Step:
    operation: _Operation
    last_read: frozenset[str]


class Function:
    """A function, read from its protobuf message.

    Args:
        package: name of the package in errors.
        name: name of the function.
        spec: the ``Function`` message.
        weights: opens a weight file by its name in the package.

    Raises:
        BundleError: an operation without a rule, an unknown type, or constants that the weight file does not have.
    """

    def __init__(
        self, package: str, name: str, spec: Any, weights: Callable[[str], WeightFile]
    ) -> None:
        self._where = f"{package}, function {name!r}"
        block = spec.block_specializations[spec.opset]
        self._refuse_unknown(operation.type for operation in block.operations)
        self._input_types = {
            value.name: tensor_type(self._where, value.type) for value in spec.inputs
        }
        self._operations = [self._operation(found, weights) for found in block.operations]
        self._maker = {
            result: operation for operation in self._operations for result in operation.results
        }
        self._output_types = {name: self._type(name) for name in block.outputs}
        for operation in self._operations:
            for read in operation.reads:
                self._type(read)
        self._plans: dict[frozenset[str], list[_Step]] = {}

    @property
    def inputs(self) -> tuple[Feature, ...]:
        """The inputs, in the order of the program."""
        return _features(self._input_types)

    @property
    def outputs(self) -> tuple[Feature, ...]:
        """The outputs, in the order of the program."""
        return _features(self._output_types)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], wanted: Iterable[str] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Compute the outputs ``wanted`` (all of them), each of its declared type and shape.

        Raises:
            BundleError: a missing or unknown name, an array of another type or shape, or operands that
                an operation is not defined for.
        """
        names = [*self._output_types] if wanted is None else [*wanted]
        for name in names:
            if name not in self._output_types:
                raise self._no_name("output", name, self._output_types)
        values: dict[str, Value] = dict(self._checked(inputs))
        with torch.no_grad():
            for step in self._plan(frozenset(names)):
                values.update(self._results(step.operation, values))
                for name in step.last_read:
                    del values[name]
        return {name: _as_array(values[name]) for name in names}

    def _plan(self, wanted: frozenset[str]) -> list[_Step]:
        """Return the steps for ``wanted``, with each constant just before its first reader."""
        if wanted not in self._plans:
            order = self._order(wanted)
            steps: list[_Step] = []
            alive = set(wanted)
            for operation in reversed(order):
                unread = {name for name in operation.results if name not in alive}
                steps.append(_Step(operation, frozenset(operation.reads - alive | unread)))
                alive |= operation.reads
            self._plans[wanted] = steps[::-1]
        return self._plans[wanted]

    def _order(self, wanted: frozenset[str]) -> list[_Operation]:
        needed = set(wanted)
        for operation in reversed(self._operations):
            if not needed.isdisjoint(operation.results):
                needed |= operation.reads
        order: dict[int, _Operation] = {}

        def place(operation: _Operation) -> None:
            for name in sorted(operation.reads):
                made_by = self._maker.get(name)
                if made_by is not None and made_by.is_constant and id(made_by) not in order:
                    place(made_by)
            order[id(operation)] = operation

        for operation in self._operations:
            if not operation.is_constant and not needed.isdisjoint(operation.results):
                place(operation)
        for name in sorted(wanted):
            made_by = self._maker.get(name)
            if made_by is not None and id(made_by) not in order:
                place(made_by)
        return [*order.values()]

    def _results(
        self, operation: _Operation, values: Mapping[str, Value]
    ) -> Iterable[tuple[str, Value]]:
        operands = {
            name: [values[part] if isinstance(part, str) else part.read() for part in parts]
            for name, parts in operation.operands.items()
        }
        if operation.kind == _CONST:
            return zip(operation.results, operands["val"], strict=True)
        where = f"{self._where}, operation {operation.name!r} ({operation.kind})"
        try:
            computed = RULES[operation.kind](Operands(operands))
        except (
            IndexError,
            KeyError,
            NotImplementedError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise _undefined(where, first_line(error)) from error
        results = [computed] if isinstance(computed, torch.Tensor) else [*computed]
        if len(results) != len(operation.results):
            raise _undefined(where, f"{len(results)} results of {len(operation.results)}")
        return [
            (name, _as_declared(where, value, declared))
            for (name, declared), value in zip(operation.results.items(), results, strict=True)
        ]

    def _checked(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
        for name in inputs:
            if name not in self._input_types:
                raise self._no_name("input", name, self._input_types)
        missing = [name for name in self._input_types if name not in inputs]
        if missing:
            raise BundleError(
                self._where,
                found=f"no input {missing[0]!r}",
                expected=f"the inputs {', '.join(self._input_types)}",
                fix="Give every input of the function.",
            )
        for name, declared in self._input_types.items():
            array = inputs[name]
            assert declared.element is not None
            if array.dtype != declared.element.numpy_dtype or not declared.takes(array.shape):
                raise BundleError(
                    f"{self._where}, input {name!r}",
                    found=f"{array.dtype} {array.shape}",
                    expected=f"{declared}",
                    fix="Give an array of that type and shape.",
                )
        return {name: torch.from_numpy(np.array(inputs[name])) for name in self._input_types}

    def _operation(self, spec: Any, weights: Callable[[str], WeightFile]) -> _Operation:
        name = spec.outputs[0].name
        where = f"{self._where}, operation {name!r} ({spec.type})"
        operands: dict[str, list[str | Constant]] = {
            key: [
                part.name
                if part.WhichOneof("binding") == "name"
                else constant(where, part.value, weights)
                for part in argument.arguments
            ]
            for key, argument in spec.inputs.items()
        }
        if spec.type == _CONST:
            operands["val"] = [constant(where, spec.attributes["val"], weights)]
        results = {value.name: tensor_type(where, value.type) for value in spec.outputs}
        return _Operation(spec.type, name, operands, results)

    def _type(self, name: str) -> TensorType:
        if name in self._input_types:
            return self._input_types[name]
        if name not in self._maker:
            raise BundleError(
                self._where,
                found=f"the name {name!r}, which nothing makes",
                expected="an input, or the result of an operation",
                fix="Copy the bundle again, or compile it again.",
            )
        return self._maker[name].results[name]

    def _refuse_unknown(self, kinds: Iterable[str]) -> None:
        unknown = sorted({kind for kind in kinds if kind not in RULES and kind != _CONST})
        if unknown:
            raise BundleError(
                self._where,
                found=f"operations without a rule: {', '.join(unknown)}",
                expected="operations that zoexport.testing.operations has",
                fix="Add a rule and a test of it, or lower the graph to other operations.",
            )

    def _no_name(self, what: str, name: str, known: Iterable[str]) -> BundleError:
        names = [*known]
        return BundleError(
            self._where,
            found=f"no {what} {name!r}",
            expected=f"one of {', '.join(names)}",
            fix=f"Check the name.{nearest(name, names)}",
        )


def _features(types: Mapping[str, TensorType]) -> tuple[Feature, ...]:
    return tuple(
        Feature(name, found.element.name, found.shape)
        for name, found in types.items()
        if found.element is not None
    )


def _as_declared(where: str, value: torch.Tensor, declared: TensorType) -> torch.Tensor:
    """Convert a result to its declared type.

    Only a wider type of the same kind is accepted; anything else is a bug in a rule.
    """
    assert declared.element is not None
    wanted = declared.element.torch_dtype
    if not declared.takes(tuple(value.shape)):
        raise _undefined(where, f"a result of the shape {tuple(value.shape)}, declared {declared}")
    if value.is_floating_point() != wanted.is_floating_point or (
        (value.dtype == torch.bool) != (wanted == torch.bool)
    ):
        raise _undefined(where, f"a result of {value.dtype}, declared {declared}")
    return value.to(wanted)


def _as_array(value: Value) -> NDArray[Any]:
    assert isinstance(value, torch.Tensor)
    return np.array(value.numpy())


def _undefined(where: str, found: str) -> BundleError:
    return BundleError(
        where,
        found=found,
        expected="operands that the operation is defined for, and the result that it declares",
        fix="Check the inputs and the lowering.",
    )
