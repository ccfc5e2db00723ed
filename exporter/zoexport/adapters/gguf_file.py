"""Bounded reader for untrusted GGUF adapters: a limited header, tensors of known sizes.

The gguf package creates an object for each element of each list that a file claims. This reader
limits the header to :data:`LONGEST_HEADER` bytes, and reads a tensor after its shape check.

A file is the magic, a version, the numbers of tensors and of fields, the fields (name, type, value), the tensors'
names, sizes, types and offsets, and, aligned, their values. All numbers are little-endian.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoexport.adapters.files import shown

LONGEST_HEADER = 1 << 20
"""Bytes of fields and tensors' descriptions: an adapter's has no vocabulary."""
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
_MOST_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
# By GGUF's number of a type: uint8 to float32, bool, then 64 bits.
_NUMBERS = {
    **dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"))),
    **dict(enumerate(("<Q", "<q", "<d"), start=10)),
}
_TYPES = ("F32", "F16", "BF16", "Q8_0")
"""Of tensors, by ggml's names."""


class BadGgufError(ValueError):
    """Refused file; the text of the error describes the problem."""


@dataclasses.dataclass(frozen=True)
class GgufTensor:
    """A tensor of a file.

    Attributes:
        shape: in NumPy's order, rows first. kind: ggml's name of its type. place: file offset.
        size: in bytes.
    """

    shape: tuple[int, ...]
    kind: str
    place: int
    size: int


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """Header of a GGUF file.

    Attributes:
        fields: values by name; None for a list.
        tensors: tensors by name.
    """

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def read(self, name: str) -> NDArray[np.float32]:
        """Read a tensor; allocates memory for its bytes and its values only.

        Raises:
            OSError: the file can no longer be read.
        """
        from gguf import GGMLQuantizationType, dequantize

        tensor = self.tensors[name]
        with self.path.open("rb") as file:
            file.seek(tensor.place)
            content = file.read(tensor.size)
        if len(content) < tensor.size:
            raise OSError(f"{name} was cut off")
        if tensor.kind in ("F32", "F16"):
            values = np.frombuffer(content, "<f4" if tensor.kind == "F32" else "<f2")
            return values.astype(np.float32).reshape(tensor.shape)
        rows = np.frombuffer(content, np.uint8).reshape(*tensor.shape[:-1], -1)
        found: NDArray[np.float32] = dequantize(rows, GGMLQuantizationType[tensor.kind])
        return found.astype(np.float32).reshape(tensor.shape)


def open_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file; all tensors lie within the file.

    Raises:
        BadGgufError: not a GGUF file, or a refused one. OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        reader = _Header(file.read(LONGEST_HEADER))
    size = path.stat().st_size
    if reader.take(len(_MAGIC)) != _MAGIC:
        raise BadGgufError("no GGUF file")
    version = reader.number("<I")
    if version not in _VERSIONS:
        raise BadGgufError(f"version {version} of GGUF, or one of big-endian numbers")
    tensor_count, field_count = reader.number("<Q"), reader.number("<Q")
    fields: dict[str, Any] = {}
    for _ in range(field_count):
        name = reader.text()
        _add(fields, name, reader.value())
    described: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(tensor_count):
        name = reader.text()
        dimensions = reader.number("<I")
        if dimensions > _MOST_DIMENSIONS:
            raise BadGgufError(f"{shown(name)} of {dimensions} dimensions")
        sizes = [reader.number("<Q") for _ in range(dimensions)]
        _add(described, name, (tuple(reversed(sizes)), reader.number("<I"), reader.number("<Q")))
    alignment = fields.get(_ALIGNMENT, 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise BadGgufError(f"the alignment {alignment!r}")
    begin = -(-reader.place // alignment) * alignment
    tensors = {name: _tensor(name, *entry, begin, size) for name, entry in described.items()}
    return GgufFile(path, fields, tensors)


def _add(found: dict[str, Any], name: str, value: Any) -> None:
    if name in found:
        raise BadGgufError(f"two entries of the name {shown(name)}")
    found[name] = value


def _tensor(
    name: str, shape: tuple[int, ...], number: int, offset: int, begin: int, size: int
) -> GgufTensor:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    kinds = {int(GGMLQuantizationType[kind]): kind for kind in _TYPES}
    if number not in kinds:
        known = {int(kind): kind.name for kind in GGMLQuantizationType}
        raise BadGgufError(f"{shown(name)} of the type {known.get(number, number)}")
    kind = kinds[number]
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    if not shape or shape[-1] % block:
        raise BadGgufError(f"{shown(name)} of the shape {shape}, in {kind}")
    taken = math.prod(shape) // block * block_bytes
    if begin + offset + taken > size:
        raise BadGgufError(f"{shown(name)}, whose {taken} bytes end beyond the file's {size}")
    return GgufTensor(shape, kind, begin + offset, taken)


class _Header:
    """The beginning of a file, read from front to back."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.place = 0

    def take(self, size: int) -> bytes:
        end = self.place + size
        if end > len(self._content):
            cut = len(self._content) < LONGEST_HEADER
            raise BadGgufError(
                "a header that ends too early" if cut else f"a header beyond {LONGEST_HEADER} bytes"
            )
        found = self._content[self.place : end]
        self.place = end
        return found

    def number(self, kind: str) -> Any:
        return struct.unpack(kind, self.take(struct.calcsize(kind)))[0]

    def text(self) -> str:
        try:
            return self.take(self.number("<Q")).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadGgufError("a text that is not UTF-8") from error

    def value(self) -> Any:
        """Read the value of a field; None for a list, which is skipped."""
        kind = self.number("<I")
        if kind == _STRING:
            return self.text()
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind != _ARRAY:
            raise BadGgufError(f"a field of the type {kind}")
        kind, count = self.number("<I"), self.number("<Q")
        if kind in _NUMBERS:
            self.take(count * struct.calcsize(_NUMBERS[kind]))
        elif kind == _STRING:
            for _ in range(count):
                self.take(self.number("<Q"))
        else:
            raise BadGgufError(f"a list of the type {kind}")
        return None
