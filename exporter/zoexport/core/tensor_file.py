"""Safetensors files: writing one whose tensors come one by one, and whether the session would read one.

Tensors may also come a few rows at a time; they are never all in memory at once. The format is an 8-byte length, a JSON
header with each tensor's type, shape and place, and the tensors' bytes without gaps. Names, types and shapes must be
known first; the header is then written once and every tensor has its place.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from zoexport.core import outside

if TYPE_CHECKING:
    import torch

#: The names of types in torch -> in safetensors, and the bytes of an element.
_TYPES = {
    "float64": ("F64", 8),
    "int64": ("I64", 8),
    "uint64": ("U64", 8),
    "float32": ("F32", 4),
    "int32": ("I32", 4),
    "uint32": ("U32", 4),
    "bfloat16": ("BF16", 2),
    "float16": ("F16", 2),
    "int16": ("I16", 2),
    "uint16": ("U16", 2),
    "int8": ("I8", 1),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}
_HEADER_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
class TensorEntry:
    """A tensor to come; ``dtype`` is a torch dtype's name ("float32")."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class TensorFileWriter:
    """A safetensors file in the making; used in a ``with`` block, at whose end it is complete and synced.

    The block must have written every row of every tensor once, in any order. Large elements come first in the file
    and the data start at a multiple of 64 bytes, so every tensor is aligned to its elements.

    Args:
        path: the file, created or emptied. It is not complete before the block ends, so it belongs in an
            ``atomic_folder`` or ``atomic_file``.
        entries: every tensor.

    Raises:
        ValueError: two entries with one name, or a dtype that is not known; from the block's end, rows that were
            not written.
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, entries: Iterable[TensorEntry]) -> None:
        ordered = sorted(entries, key=lambda entry: -_element_bytes(entry))
        self._entries = {entry.name: entry for entry in ordered}
        if len(self._entries) < len(ordered):
            counts = Counter(entry.name for entry in ordered)
            raise ValueError(f"two tensors are called {counts.most_common(1)[0][0]!r}")
        header, size = _header(ordered)
        self._offsets: dict[str, int] = {}
        offset = len(header)
        for entry in ordered:
            self._offsets[entry.name] = offset
            offset += _bytes(entry)
        self._written: dict[str, list[tuple[int, int]]] = {name: [] for name in self._entries}
        self._file = path.open("wb")
        self._file.write(header)
        self._file.truncate(len(header) + size)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write a whole tensor.

        Args:
            name: of an entry.
            tensor: of the entry's dtype and shape, in any layout.

        Raises:
            ValueError: it differs from its entry, or was written before.
            OSError: the file cannot be written.
        """
        entry = self._entry(name)
        if tuple(tensor.shape) != entry.shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; expected {entry.shape}")
        self._write(entry, 0, _rows(entry), tensor)

    def write_rows(self, name: str, begin: int, rows: torch.Tensor) -> None:
        """Write some rows of the first dimension.

        Args:
            name: of an entry with at least one dimension.
            begin: the place of the first of them.
            rows: (rows, ...) of the entry's dtype.

        Raises:
            ValueError: they do not fit the entry, or one of them was written before.
            OSError: the file cannot be written.
        """
        entry = self._entry(name)
        shape = tuple(rows.shape)
        if not entry.shape or not shape or shape[1:] != entry.shape[1:]:
            raise ValueError(f"rows of {name} are {shape}; expected rows of {entry.shape}")
        self._write(entry, begin, begin + shape[0], rows)

    def _entry(self, name: str) -> TensorEntry:
        if name not in self._entries:
            raise ValueError(f"no tensor of the file is called {name!r}")
        return self._entries[name]

    def _write(self, entry: TensorEntry, begin: int, end: int, tensor: torch.Tensor) -> None:
        import torch

        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype != entry.dtype:
            raise ValueError(f"{entry.name} is {dtype}; expected {entry.dtype}")
        if not 0 <= begin <= end <= _rows(entry):
            raise ValueError(f"rows {begin} to {end} of {entry.name}, which has {_rows(entry)}")
        written = self._written[entry.name]
        if any(begin < last and first < end for first, last in written):
            raise ValueError(f"rows {begin} to {end} of {entry.name} were written before")
        if not tensor.numel():
            return
        content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        row_bytes = _bytes(entry) // _rows(entry)
        self._file.seek(self._offsets[entry.name] + begin * row_bytes)
        self._file.write(content.data)
        written.append((begin, end))

    def __enter__(self) -> TensorFileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._file:
            if error is not None:
                return
            missing = [entry.name for entry in self._entries.values() if self._unwritten(entry) > 0]
            if missing:
                raise ValueError(f"not written: {len(missing)} tensors, {', '.join(missing[:3])}")
            self._file.flush()
            os.fsync(self._file.fileno())

    def _unwritten(self, entry: TensorEntry) -> int:
        """Return the number of rows still to be written; 0 for a tensor without elements."""
        written = sum(last - first for first, last in self._written[entry.name])
        return (_rows(entry) if _bytes(entry) else 0) - written


def _header(entries: list[TensorEntry]) -> tuple[bytes, int]:
    """Return the file's beginning for tensors in this order, and the bytes of their data."""
    content: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in entries:
        end = offset + _bytes(entry)
        content[entry.name] = {
            "dtype": _TYPES[entry.dtype][0],
            "shape": list(entry.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _HEADER_ALIGNMENT)
    return struct.pack("<Q", len(text)) + text, offset


def _element_bytes(entry: TensorEntry) -> int:
    if entry.dtype not in _TYPES:
        raise ValueError(f"{entry.name} is {entry.dtype}; expected one of {', '.join(_TYPES)}")
    return _TYPES[entry.dtype][1]


def _bytes(entry: TensorEntry) -> int:
    return _element_bytes(entry) * math.prod(entry.shape)


def _rows(entry: TensorEntry) -> int:
    return entry.shape[0] if entry.shape else 1


def check(file: Path | bytes) -> None:
    """Look at a file's header as the session does, so that no file is one thing here and another there.

    Args:
        file: its path, or its bytes.

    Raises:
        ValueError: the session refuses it. OSError: it cannot be read.
    """
    if isinstance(file, bytes):
        return _check(io.BytesIO(file), len(file))
    with file.open("rb") as opened:
        _check(opened, os.fstat(opened.fileno()).st_size)


def _check(file: IO[bytes], size: int) -> None:
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8 or length > outside.LONGEST:
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    text = file.read(length)
    if not text.startswith(b"{"):
        raise ValueError("a header that does not begin with {")
    places = []
    for name, entry in outside.parse(text).items():
        if name == "__metadata__" and entry is None:  # MLX writes it so
            continue
        if not isinstance(entry, dict):
            raise ValueError(f"{name} is no object")
        if name == "__metadata__":
            if not all(isinstance(value, str) for value in entry.values()):
                raise ValueError("metadata that are no texts")
            continue
        places.append(_place(name, entry))
    end = 0
    for begin, after in sorted(places):
        if begin != end:
            raise ValueError(f"a tensor at byte {begin} of the data, not at byte {end}")
        end = after
    if end != size - 8 - length:
        raise ValueError(f"{size - 8 - length} bytes of data, not {end}, as the tensors have")


def _place(name: str, entry: dict[str, Any]) -> tuple[int, int]:
    """Return the byte range of a tensor."""
    bytes_of = dict(_TYPES.values())
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    dtype: Any = entry.get("dtype")
    if not (_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2):
        raise ValueError(f"no shape or no two data_offsets of {name}")
    if not isinstance(dtype, str) or dtype not in bytes_of:
        raise ValueError(f"an unknown type of {name}")
    if offsets[1] - offsets[0] != math.prod(shape) * bytes_of[dtype]:
        raise ValueError(f"other bytes than the shape of {name} needs")
    return offsets[0], offsets[1]


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 2**63 for value in values
    )
