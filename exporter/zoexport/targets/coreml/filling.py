"""Functions of a package that differ in their weights alone: one is converted, the others are copies of it.

A copy is the converted function with other constants: those that the weight file has already at their offsets, the
others appended to it. So a model of many layers is converted in the time, and with the memory, of one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from coremltools.converters.mil.backend.mil.helper import create_scalar_value, create_tensor_value
from coremltools.converters.mil.mil import types
from coremltools.libmilstoragepython import _BlobStorageWriter
from coremltools.proto import Model_pb2
from numpy.typing import NDArray

from zoexport.core.errors import LoweringError
from zoexport.targets.coreml.weights import Place, Weights

_INSIDE = Path("Data/com.apple.CoreML")


@dataclasses.dataclass(frozen=True)
class Converted:
    """A function of the package: its name, where it holds its weights, and what the file knows these by."""

    name: str
    places: list[Place]
    identities: Mapping[str, str]


class PackageFiller:
    """Adds copies of functions to a saved package.

    Args:
        package: the ``.mlpackage``, whose files are written again by :meth:`save`.
    """

    def __init__(self, package: Path) -> None:
        self.path = package / _INSIDE / "model.mlmodel"
        self.model = Model_pb2.Model()
        self.model.ParseFromString(self.path.read_bytes())
        weights = package / _INSIDE / "weights" / "weight.bin"
        self.writer = _BlobStorageWriter(str(weights), False)
        self.offsets: dict[str, int] = {}

    def keep(self, function: Converted) -> None:
        """Remember where the weights of a function of the package are, for the functions that share them."""
        held = _values(self.model.mlProgram.functions[function.name])
        for place in function.places:
            value = _value(held, place, function.name)
            if value.HasField("blobFileValue"):
                identity = function.identities[place.weight]
                self.offsets[identity] = value.blobFileValue.offset

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
            self._put(value, array, weights.identity(place.weight))

    def save(self) -> None:
        """Write the functions that were added."""
        self.path.write_bytes(self.model.SerializeToString(deterministic=True))

    def _put(self, value: Any, array: NDArray[Any], identity: str) -> None:
        if not value.HasField("blobFileValue"):
            value.CopyFrom(
                create_tensor_value(array) if array.ndim else create_scalar_value(array[()])
            )
            return
        if identity not in self.offsets:
            self.offsets[identity] = self._append(np.ascontiguousarray(array.reshape(-1)))
        value.blobFileValue.offset = self.offsets[identity]

    def _append(self, array: NDArray[Any]) -> int:
        if array.dtype == np.float16:
            return int(self.writer.write_fp16_data(array.view(np.uint16)))
        if array.dtype == np.float32:
            return int(self.writer.write_float_data(array))
        if array.dtype == np.int32:
            return int(self.writer.write_int32_data(array))
        if array.dtype.metadata == types.np_int4_dtype.metadata:
            return int(self.writer.write_int4_data(array))
        return int(self.writer.write_int8_data(array))


def _values(function: Any) -> dict[tuple[str, str], Any]:
    """The constants of a function by the operation's name and the argument."""
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
