"""Programs of layers as ExecuTorch's runtime reads them, written from their graphs without its compiler.

A program is calls of kernels in the graph's order. What it takes and gives lies in its caller's memory, what it
computes on the way in a block that is planned here. The file is a flatbuffer: the package has the schema,
``exir/_serialize/program.fbs``, and ``data/bin/flatc`` that writes it from JSON. Nothing of ExecuTorch is imported.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import operator
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node

from zoexport.core.graph import Program
from zoexport.ir.graphs import aten, identifier, is_call, operand, output_node
from zoexport.targets.executorch.planning import Lifetime, placed

_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2}
_PLANNED = 1
"""The buffer of what is computed."""
_TYPES = {
    torch.uint8: ("BYTE", 0),
    torch.int8: ("CHAR", 1),
    torch.int32: ("INT", 3),
    torch.int64: ("LONG", 4),
    torch.float16: ("HALF", 5),
    torch.float32: ("FLOAT", 6),
    torch.float64: ("DOUBLE", 7),
    torch.bool: ("BOOL", 11),
    torch.bfloat16: ("BFLOAT16", 15),
}
"""Names and numbers of ``scalar_type.fbs``."""
_CONSTANT, _SEGMENT = 16, 128
"""Bytes of a constant, which is one number, and what a segment's place is a multiple of."""
Table = dict[str, Any]
"""A table of ``program.fbs``."""


def write(programs: Iterable[Program], path: Path) -> list[str]:
    """Write programs as the methods of one file.

    Args:
        programs: whose sizes are numbers, and whose graphs are calls of operators that have an out variant.

    Returns:
        The operators that a runtime must have for it, with their overloads.
    """
    constants = bytearray()
    plans = [_Plan(program, constants).made() for program in programs]
    # The first offset is that of tensors that are no constants.
    offsets = [0, *range(0, len(constants), _CONSTANT)]
    written = _encoded(
        {
            "execution_plan": plans,
            "segments": [{"offset": 0, "size": len(constants)}] if constants else [],
            "constant_segment": {"segment_index": 0, "offsets": offsets},
        }
    )
    path.write_bytes(_with_segment(written, bytes(constants)) if constants else written)
    operators = (one for plan in plans for one in plan["operators"])
    return sorted({f"{one['name']}.{one['overload']}" for one in operators})


def _encoded(program: Table) -> bytes:
    """Return a program as the bytes of its file.

    Raises:
        RuntimeError: flatc refuses it.
    """
    found = importlib.util.find_spec("executorch")
    assert found is not None and found.submodule_search_locations
    package = Path(next(iter(found.submodule_search_locations)))
    schema = package / "exir" / "_serialize" / "program.fbs"
    flatc = package / "data" / "bin" / "flatc"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "program.json")
        source.write_text(json.dumps(program))
        done = subprocess.run(
            [flatc, "--binary", "-o", folder, schema, source], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise RuntimeError(f"flatc: {(done.stdout + done.stderr).strip()}")
        return source.with_suffix(".pte").read_bytes()


def _with_segment(program: bytes, segment: bytes) -> bytes:
    """A program's file with bytes behind it, and the header that says where (``exir/_serialize/_program.py``)."""
    header = 32
    size = len(program) + header
    base = -(-size // _SEGMENT) * _SEGMENT
    said = (4, header), (8, size), (8, base), (8, len(segment))
    root = int.from_bytes(program[:4], "little") + header
    head = root.to_bytes(4, "little") + program[4:8] + b"eh00"
    head += b"".join(number.to_bytes(width, "little") for width, number in said)
    return (head + program[8:]).ljust(base, b"\0") + segment


Result = tuple[Node, int]
"""A call, and which of its results."""


def planned_bytes(program: Program) -> int:
    """Return the bytes of what a program computes that is not in its caller's memory."""
    return Layout(program).planned()[1]


class Layout:
    """Memory layout of a program: views share a tensor, and so do the parts of results."""

    def __init__(self, program: Program) -> None:
        self.nodes = list(program.module.graph.nodes)
        self._copied = set(output_node(program.module).all_input_nodes)
        self.returned = {self.owner(node) for node in self._copied}

    def is_view(self, node: Node) -> bool:
        """Return whether a node shares its operand's memory; returned views are copied instead."""
        return is_call(node, aten.view, aten._unsafe_view) and node not in self._copied

    def owner(self, node: Node) -> Result:
        """Return the result or input that owns the memory of a value."""
        while self.is_view(node):
            node = operand(node)
        if node.target is operator.getitem:
            part: Any = node.args[1]
            return operand(node), part
        return node, 0

    def results(self, node: Node) -> Sequence[torch.Tensor]:
        """Return the tensors that a node computes; empty for views, getitem and inputs."""
        if node.op != "call_function" or node.target is operator.getitem or self.is_view(node):
            return ()
        value = node.meta["val"]
        return (value,) if isinstance(value, torch.Tensor) else value

    def planned(self) -> tuple[dict[Result, int], int]:
        """Return the offset of each result outside the caller's memory, and the total bytes."""
        number = {node: place for place, node in enumerate(self.nodes)}
        last = {
            self.owner(read): number[node] for node in self.nodes for read in node.all_input_nodes
        }
        kept = {
            (node, part): value.nbytes
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

    def __init__(self, program: Program, constants: bytearray) -> None:
        self._name = identifier(program.name)
        self._layout = Layout(program)
        self._offsets, self._size = self._layout.planned()
        self._constants = constants
        self._values: list[Table] = []
        self._known: dict[Any, int] = {}
        self._places: dict[Result, int] = {}
        self._viewed: dict[Node, int] = {}
        self._operators: dict[tuple[str, str], int] = {}
        self._calls: list[Table] = []

    def made(self) -> Table:
        """Return the plan of the whole program."""
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
        names = ({"name": name, "overload": overload} for name, overload in self._operators)
        return {
            "name": self._name,
            "container_meta_type": {"encoded_inp_str": "", "encoded_out_str": ""},
            "values": self._values,
            "inputs": inputs,
            "outputs": outputs,
            "chains": [{"inputs": inputs, "outputs": outputs, "instructions": self._calls}],
            "operators": [*names],
            "delegates": [],
            "non_const_buffer_sizes": [0, self._size],
        }

    def _add(self, kind: str, **value: Any) -> int:
        self._values.append({"val_type": kind, "val": value})
        return len(self._values) - 1

    def _once(self, kind: str, key: Any, **value: Any) -> int:
        """Return the place of a value that no call writes to: one for all that are equal."""
        if (kind, key) not in self._known:
            self._known[kind, key] = self._add(kind, **value)
        return self._known[kind, key]

    def _tensor(self, value: torch.Tensor, offset: int | None, constant: int = 0) -> int:
        place = {}
        if offset is not None:
            low, high = offset & 0xFFFFFFFF, offset >> 32
            parts = {"memory_id": _PLANNED, "memory_offset_low": low, "memory_offset_high": high}
            place = {"allocation_info": parts}
        return self._add(
            "Tensor",
            scalar_type=_TYPES[value.dtype][0],
            sizes=[int(size) for size in value.shape],
            dim_order=list(range(value.dim())),
            data_buffer_idx=constant,
            **place,
        )

    def _place(self, node: Node) -> int:
        return (
            self._viewed[node] if node in self._viewed else self._places[self._layout.owner(node)]
        )

    def _view(self, node: Node) -> None:
        """Place a view in its tensor's memory; views of the caller's tensors are set later."""
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
        call = {"op_index": number, "args": arguments}
        self._calls.append({"instr_args_type": "KernelCall", "instr_args": call})

    def _call(self, node: Node) -> None:
        """A call of an operator's out variant: its arguments, where its results go, and these once more."""
        target = _out_variant(_functional(node))
        given = _arguments(node)
        arguments = []
        for argument in target._schema.arguments:
            if not argument.is_out:
                value = given.get(argument.name, argument.default_value)
                arguments.append(self._argument(value, argument.type))
        results = []
        for part, value in enumerate(self._layout.results(node)):
            result = (node, part)
            self._places[result] = self._tensor(value, self._offsets.get(result))
            results.append(self._places[result])
        both = results[0] if len(results) == 1 else self._add("TensorList", items=results)
        self._do((target._schema.name, target._schema.overload_name), [*arguments, *results, both])

    def _integers(self, values: Iterable[int]) -> int:
        items = [self._argument(int(value), torch.IntType.get()) for value in values]
        return self._once("IntList", tuple(items), items=items)

    def _argument(self, value: Any, kind: Any) -> int:
        if isinstance(kind, torch.OptionalType):
            kind = kind.getElementType()
        if value is None:
            return self._once("Null", None)
        if isinstance(value, Node):
            return self._place(value)
        if isinstance(kind, torch.ListType):
            return self._list(value, kind.getElementType())
        if isinstance(kind, torch.TensorType):
            return self._constant(torch.tensor(value))
        if isinstance(value, torch.dtype):
            value = _TYPES[value][1]
        if isinstance(value, torch.memory_format):
            value = _FORMATS[value]
        if isinstance(value, bool):
            return self._once("Bool", value, bool_val=value)
        if isinstance(value, str):
            return self._once("String", value, string_val=value)
        if isinstance(value, float) or isinstance(kind, torch.FloatType):
            return self._once("Double", float(value).hex(), double_val=_number(value))
        return self._once("Int", int(value), int_val=int(value))

    def _list(self, values: Any, kind: Any) -> int:
        values = values if isinstance(values, (list, tuple)) else [values]
        if isinstance(kind, torch.OptionalType):
            items = [-1 if one is None else self._place(one) for one in values]
            return self._once("OptionalTensorList", tuple(items), items=items)
        if isinstance(kind, torch.TensorType):
            items = [self._place(one) for one in values]
            return self._once("TensorList", tuple(items), items=items)
        if isinstance(kind, torch.FloatType):
            key = tuple(float(one).hex() for one in values)
            return self._once("DoubleList", key, items=[_number(one) for one in values])
        if isinstance(kind, torch.BoolType):
            return self._once("BoolList", tuple(values), items=list(values))
        return self._integers(values)

    def _constant(self, value: torch.Tensor) -> int:
        """Return the index of a scalar constant, used in place of a tensor."""
        key = (value.dtype, value.item())
        if key not in self._known:
            self._constants += value.numpy().tobytes().ljust(_CONSTANT, b"\0")
            self._known[key] = self._tensor(value, None, len(self._constants) // _CONSTANT)
        return self._known[key]


def _number(value: float) -> float | str:
    """Return a number as flatc reads it: JSON has none that is not finite."""
    return float(value) if math.isfinite(value) else str(float(value))


@functools.cache
def _out_variant(functional: Any) -> Any:
    """Return the out variant of an operator.

    Raises:
        RuntimeError: the operator has no out variant.
    """
    wanted = _taken(functional)
    packet = functional.overloadpacket
    for overload in packet.overloads():
        found = getattr(packet, overload)
        if _taken(found) == wanted and any(one.is_out for one in found._schema.arguments):
            return found
    raise RuntimeError(f"{functional} has no variant that takes the memory of its results")


def _taken(overload: Any) -> list[tuple[str, str]]:
    """Return an operator's arguments without outputs and tensor options (dtype, device...)."""
    options = {"dtype", "layout", "device", "pin_memory"}
    given = [one for one in overload._schema.arguments if not one.is_out]
    return [(one.name, str(one.type)) for one in given if one.name not in options]


def _functional(node: Node) -> Any:
    """Return the operator of a call, in place of one that gives a view the one that copies."""
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
