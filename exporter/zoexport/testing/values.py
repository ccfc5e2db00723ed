"""Element types, tensor types and lazily read constants of a package."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from zoexport.core.errors import BundleError
from zoexport.testing.weights import Element, WeightFile

#: Value of a name while a function runs. Strings are settings of operations.
Value = torch.Tensor | str

_STRING = "STRING"
#: Element types by name in the protobuf schema of ML Programs (``DataType`` in MIL.proto).
ELEMENTS: Mapping[str, Element] = {
    "FLOAT16": Element("fp16", torch.float16, np.dtype(np.float16), blob=1),
    "FLOAT32": Element("fp32", torch.float32, np.dtype(np.float32), blob=2),
    "UINT8": Element("uint8", torch.uint8, np.dtype(np.uint8), blob=3),
    "INT8": Element("int8", torch.int8, np.dtype(np.int8), blob=4),
    "INT16": Element("int16", torch.int16, np.dtype(np.int16), blob=6),
    "UINT16": Element("uint16", torch.uint16, np.dtype(np.uint16), blob=7),
    "INT4": Element("int4", torch.int8, np.dtype(np.int8), blob=8, bits=4),
    "UINT4": Element("uint4", torch.uint8, np.dtype(np.uint8), blob=11, bits=4),
    "INT32": Element("int32", torch.int32, np.dtype(np.int32), blob=14),
    "BOOL": Element("bool", torch.bool, np.dtype(np.bool_), blob=None),
}
BY_NAME = {element.name: element for element in ELEMENTS.values()}


@dataclasses.dataclass(frozen=True)
class TensorType:
    """A declared type. ``element`` is None for a string; a dimension is None if any size fits."""

    element: Element | None
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.element.name if self.element else 'string'} ({sizes})"

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor of ``shape`` is of this type."""
        return len(shape) == len(self.shape) and all(
            size in (None, found) for size, found in zip(self.shape, shape, strict=True)
        )


@dataclasses.dataclass(frozen=True)
class Constant:
    """A constant. ``read`` returns its value, from the weight file if it is stored there."""

    type: TensorType
    read: Callable[[], Value]


def tensor_type(where: str, spec: Any) -> TensorType:
    """Return the type that a ``ValueType`` message declares.

    Raises:
        BundleError: not a tensor, or its element type is not supported.
    """
    from coremltools.proto import MIL_pb2

    kind = spec.WhichOneof("type")
    if kind != "tensorType":
        raise _unknown(where, f"a value of the kind {kind}")
    tensor = spec.tensorType
    name = MIL_pb2.DataType.Name(tensor.dataType)
    if name not in ELEMENTS and name != _STRING:
        raise _unknown(where, f"elements of the type {name}")
    shape = tuple(
        dim.constant.size if dim.WhichOneof("dimension") == "constant" else None
        for dim in tensor.dimensions
    )
    return TensorType(ELEMENTS.get(name), shape)


def constant(where: str, spec: Any, weights: Callable[[str], WeightFile]) -> Constant:
    """Return the constant of a ``Value`` message; a reference to a weight file is checked.

    Args:
        where: location for errors.
        spec: the message.
        weights: opens a weight file by its name in the package.

    Raises:
        BundleError: unknown type, or the weight file does not have the content.
    """
    declared = tensor_type(where, spec.type)
    if spec.WhichOneof("value") == "blobFileValue":
        if declared.element is None or None in declared.shape:
            raise _unknown(where, f"{declared} in a weight file")
        element, shape = declared.element, [size or 0 for size in declared.shape]
        file, offset = weights(spec.blobFileValue.fileName), spec.blobFileValue.offset
        file.check(offset, element, math.prod(shape))
        return Constant(
            declared, lambda: file.read(offset, element, math.prod(shape)).reshape(shape)
        )
    return Constant(declared, lambda: _immediate(where, spec.immediateValue.tensor, declared))


def _immediate(where: str, tensor: Any, declared: TensorType) -> Value:
    field = tensor.WhichOneof("value")
    values = getattr(tensor, field).values
    element, shape = declared.element, [size or 0 for size in declared.shape]
    if element is None:
        return str(values[0])
    # Types of less than 32 bits, bool and the integers of 16 bits left out, are written as bytes.
    expected = element.stored_bytes(math.prod(shape)) if field == "bytes" else math.prod(shape)
    if len(values) != expected:
        raise _unknown(where, f"{len(values)} {field} of {declared}, which has {expected}")
    if field == "bytes":
        return element.decoded(values, math.prod(shape)).reshape(shape)
    return torch.from_numpy(np.array(values, element.numpy_dtype).reshape(shape))


def _unknown(where: str, found: str) -> BundleError:
    return BundleError(
        where,
        found=found,
        expected=f"tensors of {', '.join(BY_NAME)}, or strings",
        fix="Compile the bundle again, or give the evaluator that type.",
    )
