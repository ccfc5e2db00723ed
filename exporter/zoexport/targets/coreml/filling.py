"""Functions of a package that differ in their weights alone: one is converted, the others are copies of it.

A copy is the converted function with other constants: those that the weight file has already at their offsets, the
others appended to it. So a model of many layers is converted in the time, and with the memory, of one. Functions that
were converted into a package of their own come along in the same way.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from coremltools.converters.mil.backend.mil.helper import create_scalar_value, create_tensor_value
from coremltools.converters.mil.mil import types
from coremltools.libmilstoragepython import _BlobStorageReader, _BlobStorageWriter
from coremltools.proto import MIL_pb2, Model_pb2
from numpy.typing import NDArray

from zoexport.core.errors import LoweringError
from zoexport.targets.coreml.weights import Place, Weights

Types = MIL_pb2.DataType
_INSIDE = Path("Data/com.apple.CoreML")
_SPECIFICATION, _WEIGHTS = _INSIDE / "model.mlmodel", _INSIDE / "weights" / "weight.bin"


@dataclasses.dataclass(frozen=True)
class Converted:
    """A function of the package: its name, and where it holds its weights."""

    name: str
    places: list[Place]


class PackageFiller:
    """Adds copies of functions to a saved package.

    Args:
        package: the ``.mlpackage``, whose files are written again by :meth:`save`.
    """

    def __init__(self, package: Path) -> None:
        self.path = package / _SPECIFICATION
        self.model = _read(self.path)
        self.offsets: dict[str, int] = {}
        seen = set()
        for value, array in _stored(self.model, package):
            offset = value.blobFileValue.offset
            if offset not in seen:
                self.offsets.setdefault(_digest(array), offset)
            seen.add(offset)
        self.writer = _BlobStorageWriter(str(package / _WEIGHTS), False)

    def merge(self, other: Path) -> None:
        """Add all functions of another package."""
        model = _read(other / _SPECIFICATION)
        for value, array in _stored(model, other):
            self._put(value, array)
        for name, function in model.mlProgram.functions.items():
            self.model.mlProgram.functions[name].CopyFrom(function)
        self.model.description.functions.extend(model.description.functions)

    def add(self, name: str, like: Converted, weights: Weights) -> None:
        """Add the function ``name``: that of ``like`` with other weights of the same shapes.

        Raises:
            LoweringError: weights of other shapes.
        """
        program = self.model.mlProgram
        program.functions[name].CopyFrom(program.functions[like.name])
        described = next(one for one in self.model.description.functions if one.name == like.name)
        added = self.model.description.functions.add()
        added.CopyFrom(described)
        added.name = name
        held = _values(program.functions[name])
        for place in like.places:
            value = _value(held, place, name)
            array = weights.stored(place.weight)
            sizes = tuple(one.constant.size for one in value.type.tensorType.dimensions)
            if array.shape != sizes:
                raise LoweringError(
                    f"{weights.names[place.weight]} in {name}",
                    found=f"shape {array.shape}",
                    expected=f"{sizes}, as {like.name} has it",
                    fix="Report the model's architecture and the settings.",
                )
            self._put(value, array)

    def save(self) -> None:
        """Write the functions that were added."""
        self.path.write_bytes(self.model.SerializeToString(deterministic=True))

    def _put(self, value: Any, array: NDArray[Any]) -> None:
        if not value.HasField("blobFileValue"):
            value.CopyFrom(
                create_tensor_value(array) if array.ndim else create_scalar_value(array[()])
            )
            return
        digest = _digest(array)
        if digest not in self.offsets:
            self.offsets[digest] = self._append(np.ascontiguousarray(array.reshape(-1)))
        value.blobFileValue.offset = self.offsets[digest]

    def _append(self, array: NDArray[Any]) -> int:
        if array.dtype == np.float16:
            return int(self.writer.write_fp16_data(array.view(np.uint16)))
        if array.dtype == np.float32:
            return int(self.writer.write_float_data(array))
        if array.dtype == np.int32:
            return int(self.writer.write_int32_data(array))
        if _is_int4(array):
            return int(self.writer.write_int4_data(array))
        return int(self.writer.write_int8_data(array))


def _read(path: Path) -> Any:
    model = Model_pb2.Model()
    model.ParseFromString(path.read_bytes())
    return model


def _stored(model: Any, package: Path) -> Iterator[tuple[Any, NDArray[Any]]]:
    """The constants of a package's functions that lie in its weight file, and what they hold."""
    reader = _BlobStorageReader(str(package / _WEIGHTS))
    read = {
        Types.FLOAT16: lambda at: reader.read_fp16_data(at).view(np.float16),
        Types.FLOAT32: reader.read_float_data,
        Types.INT32: reader.read_int32_data,
        Types.INT8: reader.read_int8_data,
        Types.INT4: lambda at: reader.read_int4_data(at).astype(types.np_int4_dtype),
    }
    for function in model.mlProgram.functions.values():
        for value in _values(function).values():
            if value.HasField("blobFileValue"):
                yield value, read[value.type.tensorType.dataType](value.blobFileValue.offset)


def _digest(array: NDArray[Any]) -> str:
    """Return the key of an array in the weight file; it does not depend on the shape."""
    kind = "int4" if _is_int4(array) else str(array.dtype)
    return f"{kind} {hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()}"


def _is_int4(array: NDArray[Any]) -> bool:
    return bool(array.dtype.metadata == types.np_int4_dtype.metadata)


def _values(function: Any) -> dict[tuple[str, str], Any]:
    """Return the constants of a function by the operation's name and the argument."""
    found = {}
    for operation in function.block_specializations[function.opset].operations:
        name = operation.attributes["name"].immediateValue.tensor.strings.values[0]
        if operation.type == "const":
            found[name, "val"] = operation.attributes["val"]
        for argument, given in operation.inputs.items():
            if len(given.arguments) == 1 and given.arguments[0].HasField("value"):
                found[name, argument] = given.arguments[0].value
    return found


def _value(held: dict[tuple[str, str], Any], place: Place, function: str) -> Any:
    if (place.operation, place.argument) not in held:
        raise LoweringError(
            f"{place.weight} in the Core ML function {function}",
            found=f"no operation {place.operation} with {place.argument}",
            expected="the names that the function was built with",
            fix="Install the version of coremltools that zoexport asks for.",
        )
    return held[place.operation, place.argument]
