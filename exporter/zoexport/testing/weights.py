"""A weight file of a package: constants at offsets, each after its own header.

The layout is that of MIL blob storage, version 2: 64 bytes with the number of constants and the version, then for
every constant 64 bytes (mark, element type, bytes, offset of the content) and its content, all at multiples of 64.
coremltools' reader gives 4-bit elements unpacked and checks neither sizes nor the type that the program declares.
"""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from zoexport.core.errors import BundleError

_VERSION = 2
_MARK = 0xDEADBEEF
_FILE_HEADER = struct.Struct("<II")
_HEADER = struct.Struct("<IIQQ")


@dataclasses.dataclass(frozen=True)
class Element:
    """An element type: its name in operations, its dtypes here, and its number in weight files."""

    name: str
    torch_dtype: torch.dtype
    numpy_dtype: np.dtype[np.generic]
    blob: int | None
    bits: int = 0

    def stored_bytes(self, count: int) -> int:
        """Return the number of bytes of ``count`` elements in a file."""
        return (count * self.bits + 7) // 8 if self.bits else count * self.numpy_dtype.itemsize

    def decoded(self, content: bytes | NDArray[np.uint8], count: int) -> torch.Tensor:
        """Decode elements (count,) from stored bytes; two 4-bit elements a byte, low half first."""
        raw = np.frombuffer(content, np.uint8)
        if not self.bits:
            return torch.from_numpy(raw.view(self.numpy_dtype).copy())
        halves = np.empty(2 * raw.size, self.numpy_dtype)
        np.bitwise_and(raw, 15, out=halves[0::2].view(np.uint8))
        np.right_shift(raw, 4, out=halves[1::2].view(np.uint8))
        if self.torch_dtype == torch.int8:
            halves[halves > 7] -= 16
        return torch.from_numpy(halves[:count])


class WeightFile:
    """A weight file, mapped: what is read is copied, the rest stays on disk.

    Raises:
        BundleError: no such file, or not a weight file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file() or path.stat().st_size < _FILE_HEADER.size:
            found = "an empty file" if path.is_file() else "no such file"
            raise self._damaged(found, "the constants of the programs")
        self._bytes: NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r")
        version = _FILE_HEADER.unpack(self._bytes[: _FILE_HEADER.size].tobytes())[1]
        if version != _VERSION:
            raise self._damaged(f"storage version {version}", f"version {_VERSION}")

    def check(self, offset: int, element: Element, count: int) -> int:
        """Check the header at ``offset`` against the declaration; return the offset of the content.

        Raises:
            BundleError: another type or size, or content beyond the end of the file.
        """
        expected = f"{count} elements of {element.name} at {offset}"
        if offset + _HEADER.size > self._bytes.size:
            raise self._damaged(f"{self._bytes.size} bytes", expected)
        header = self._bytes[offset : offset + _HEADER.size].tobytes()
        mark, kind, size, begin = _HEADER.unpack(header)
        if mark != _MARK:
            raise self._damaged(f"no constant at {offset}", expected)
        if kind != element.blob or size != element.stored_bytes(count):
            raise self._damaged(f"{size} bytes of the type {kind} at {offset}", expected)
        if begin + size > self._bytes.size:
            raise self._damaged(f"{self._bytes.size} bytes", f"at least {begin + size}")
        return int(begin)

    def read(self, offset: int, element: Element, count: int) -> torch.Tensor:
        """Read the constant (count,) whose header is at ``offset``."""
        begin = self.check(offset, element, count)
        return element.decoded(self._bytes[begin : begin + element.stored_bytes(count)], count)

    def _damaged(self, found: str, expected: str) -> BundleError:
        return BundleError(
            str(self.path),
            found=found,
            expected=expected,
            fix="Copy the bundle again, or compile it again.",
        )
