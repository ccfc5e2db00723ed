"""Programs of layers as ExecuTorch's runtime reads them, written from their graphs without its compiler.

A program is calls of kernels in the graph's order. What it takes and gives lies in its caller's memory, what it
computes on the way in a block that is planned here. Only how a file is written is asked of ExecuTorch: of its public
``exir.schema`` and ``exir.operator``, and of ``exir._serialize``, which no public name gives.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from executorch.exir import schema
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir.operator.convert import to_out_variant
from executorch.exir.tensor import scalar_type_enum
from torch.fx import Node

from zoexport.core.types import Program
from zoexport.ir.graphs import aten, identifier, is_call, operand, output_node
from zoexport.targets.executorch.planning import Lifetime, placed

_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2}
_PLANNED = 1
"""The buffer of what is computed; 0 has constants."""


def write(programs: Iterable[Program], path: Path) -> list[str]:
    """Write programs as the methods of one file.

    Args:
        programs: whose sizes are numbers, and whose graphs are calls of operators that have an out variant.

    Returns:
        The operators that a runtime must have for it, with their overloads.
    """
    constants = [schema.Buffer(storage=b"")]
    plans = [_Plan(program, constants).made() for program in programs]
    file = PTEFile(
        program=schema.Program(
            version=0,
            execution_plan=plans,
            constant_buffer=constants,
            backend_delegate_data=[],
            segments=[],
            constant_segment=schema.SubsegmentOffsets(segment_index=0, offsets=[]),
        )
    )
    with path.open("wb") as opened:
        serialize_pte_binary(file).write_to_file(opened)
    return sorted({f"{one.name}.{one.overload}" for plan in plans for one in plan.operators})


Result = tuple[Node, int]
"""A call, and which of its results."""


def planned_bytes(program: Program) -> int:
    """Bytes of what a program computes that is not in its caller's memory."""
    return _Layout(program).planned()[1]


def _bytes(value: torch.Tensor) -> int:
    return value.numel() * value.element_size()


class _Layout:
    """Which values of a program are one tensor in memory: views, and the parts of results."""

    def __init__(self, program: Program) -> None:
        self.nodes = list(program.module.graph.nodes)
        self._copied = set(output_node(program.module).all_input_nodes)
        self.returned = {self.owner(node) for node in self._copied}

    def is_view(self, node: Node) -> bool:
        """Whether it lies where its operand does; one that is returned is copied into the caller's memory."""
        return is_call(node, aten.view, aten._unsafe_view) and node not in self._copied

    def owner(self, node: Node) -> Result:
        """The result in whose place a value lies, or an input."""
        while self.is_view(node):
            node = operand(node)
        if node.target is operator.getitem:
            part: Any = node.args[1]
            return operand(node), part
        return node, 0

    def results(self, node: Node) -> Sequence[torch.Tensor]:
        """What a call computes; nothing of what is no call, or no more than another name."""
        if node.op != "call_function" or node.target is operator.getitem or self.is_view(node):
            return ()
        value = node.meta["val"]
        return (value,) if isinstance(value, torch.Tensor) else value

    def planned(self) -> tuple[dict[Result, int], int]:
        """Where each result lies that is not in its caller's memory, and the bytes of all."""
        number = {node: place for place, node in enumerate(self.nodes)}
        last = {
            self.owner(read): number[node] for node in self.nodes for read in node.all_input_nodes
        }
        kept = {
            (node, part): _bytes(value)
            for node in self.nodes
            for part, value in enumerate(self.results(node))
            if (node, part) not in self.returned
        }
        lifetimes = [
            Lifetime(size, number[result[0]], last.get(result, number[result[0]]))
            for result, size in kept.items()
        ]
        offsets, total = placed(lifetimes)
        return dict(zip(kept, offsets, strict=True)), total


class _Plan:
    """One program on its way to the file: ExecuTorch's tables of values, operators and calls."""

    def __init__(self, program: Program, constants: list[schema.Buffer]) -> None:
        self._name = identifier(program.name)
        self._layout = _Layout(program)
        self._offsets, self._size = self._layout.planned()
        self._constants = constants
        self._values: list[schema.EValue] = []
        self._known: dict[Any, int] = {}
        self._places: dict[Result, int] = {}
        self._viewed: dict[Node, int] = {}
        self._operators: dict[tuple[str, str], int] = {}
        self._calls: list[schema.Instruction] = []

    def made(self) -> schema.ExecutionPlan:
        """The plan of the whole program."""
        inputs, outputs = [], []
        for node in self._layout.nodes:
            if node.op == "placeholder":
                self._places[node, 0] = self._tensor(node.meta["val"], None)
                inputs.append(self._places[node, 0])
            elif node.op == "output":
                returned: Any = node.args[0]
                outputs = [self._place(one) for one in returned]
            elif self._layout.is_view(node):
                self._view(node)
            elif node.target is not operator.getitem:
                self._call(node)
        return schema.ExecutionPlan(
            name=self._name,
            container_meta_type=schema.ContainerMetadata("", ""),
            values=self._values,
            inputs=inputs,
            outputs=outputs,
            chains=[schema.Chain(inputs, outputs, self._calls, stacktrace=None)],
            operators=[schema.Operator(*names) for names in self._operators],
            delegates=[],
            non_const_buffer_sizes=[0, self._size],
        )

    def _add(self, value: Any) -> int:
        self._values.append(schema.EValue(value))
        return len(self._values) - 1

    def _once(self, value: Any, key: Any) -> int:
        """The place of a value that no call writes to: one for all that are equal."""
        key = (type(value), key)
        if key not in self._known:
            self._known[key] = self._add(value)
        return self._known[key]

    def _tensor(self, value: torch.Tensor, offset: int | None, constant: int = 0) -> int:
        place = None
        if offset is not None:
            place = schema.AllocationDetails(_PLANNED, offset & 0xFFFFFFFF, offset >> 32)
        return self._add(
            schema.Tensor(
                scalar_type=scalar_type_enum(value.dtype),
                storage_offset=0,
                sizes=[int(size) for size in value.shape],
                dim_order=list(range(value.dim())),
                requires_grad=False,
                layout=0,
                data_buffer_idx=constant,
                allocation_info=place,
                shape_dynamism=schema.TensorShapeDynamism.STATIC,
            )
        )

    def _place(self, node: Node) -> int:
        return (
            self._viewed[node] if node in self._viewed else self._places[self._layout.owner(node)]
        )

    def _view(self, node: Node) -> None:
        """A view lies where its tensor does. Of a tensor of the caller the runtime finds that out."""
        owner = self._layout.owner(node)
        self._viewed[node] = self._tensor(node.meta["val"], self._offsets.get(owner))
        if owner not in self._offsets:
            sizes = self._integers(node.meta["val"].shape)
            self._do(
                ("executorch_prim::et_view", "default"),
                [self._place(operand(node)), sizes, self._viewed[node]],
            )

    def _do(self, names: tuple[str, str], arguments: list[int]) -> None:
        number = self._operators.setdefault(names, len(self._operators))
        self._calls.append(schema.Instruction(schema.KernelCall(number, arguments)))

    def _call(self, node: Node) -> None:
        """A call of an operator's out variant: its arguments, where its results go, and these once more."""
        target, outs = to_out_variant(_functional(node))
        given = _arguments(node)
        arguments = []
        for argument in target._schema.arguments:
            if argument.name not in outs:
                value = given.get(argument.name, argument.default_value)
                arguments.append(self._argument(value, argument.type))
        results = []
        for part, value in enumerate(self._layout.results(node)):
            result = (node, part)
            self._places[result] = self._tensor(value, self._offsets.get(result))
            results.append(self._places[result])
        both = results[0] if len(results) == 1 else self._add(schema.TensorList(results))
        self._do((target._schema.name, target._schema.overload_name), [*arguments, *results, both])

    def _integers(self, values: Iterable[int]) -> int:
        items = [self._argument(int(value), torch.IntType.get()) for value in values]
        return self._once(schema.IntList(items), tuple(items))

    def _argument(self, value: Any, kind: Any) -> int:
        if isinstance(kind, torch.OptionalType):
            kind = kind.getElementType()
        if value is None:
            return self._once(schema.Null(), None)
        if isinstance(value, Node):
            return self._place(value)
        if isinstance(kind, torch.ListType):
            return self._list(value, kind.getElementType())
        if isinstance(kind, torch.TensorType):
            return self._constant(torch.tensor(value))
        if isinstance(value, torch.dtype):
            value = int(scalar_type_enum(value))
        if isinstance(value, torch.memory_format):
            value = _FORMATS[value]
        if isinstance(value, bool):
            return self._once(schema.Bool(value), value)
        if isinstance(value, str):
            return self._once(schema.String(value), value)
        if isinstance(value, float) or isinstance(kind, torch.FloatType):
            return self._once(schema.Double(float(value)), float(value).hex())
        return self._once(schema.Int(int(value)), int(value))

    def _list(self, values: Any, kind: Any) -> int:
        values = values if isinstance(values, (list, tuple)) else [values]
        if isinstance(kind, torch.OptionalType):
            items = [-1 if one is None else self._place(one) for one in values]
            return self._once(schema.OptionalTensorList(items), tuple(items))
        if isinstance(kind, torch.TensorType):
            items = [self._place(one) for one in values]
            return self._once(schema.TensorList(items), tuple(items))
        if isinstance(kind, torch.FloatType):
            numbers = [float(one) for one in values]
            return self._once(schema.DoubleList(numbers), tuple(one.hex() for one in numbers))
        if isinstance(kind, torch.BoolType):
            return self._once(schema.BoolList(list(values)), tuple(values))
        return self._integers(values)

    def _constant(self, value: torch.Tensor) -> int:
        """A number where an operator takes a tensor."""
        key = (value.dtype, value.item())
        if key not in self._known:
            self._constants.append(schema.Buffer(storage=value.numpy().tobytes()))
            self._known[key] = self._tensor(value, None, len(self._constants) - 1)
        return self._known[key]


def _functional(node: Node) -> Any:
    """The operator of a call, in place of one that gives a view the one that copies."""
    target: Any = node.target
    views = any(one.alias_info is not None for one in target._schema.returns)
    if not views:
        return target
    namespace, _, name = target._schema.name.partition("::")
    name = {"_unsafe_view": "view"}.get(name, name)
    packet = getattr(getattr(torch.ops, namespace), f"{name}_copy")
    return getattr(packet, target._overloadname)


def _arguments(node: Node) -> dict[str, Any]:
    target: Any = node.target
    names = [argument.name for argument in target._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}
