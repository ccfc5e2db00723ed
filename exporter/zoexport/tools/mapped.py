"""Float32 matrices by name in a scratch file: as large as the model, and never in memory as a whole."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from zoexport.core.errors import ConfigError, first_line

if TYPE_CHECKING:
    import torch

_BLOCK = 1 << 20


class MappedTensors(Mapping[str, "torch.Tensor"]):
    """Matrices (rows, columns) of one file.

    Each access maps a matrix again. Writing to it writes to the file; its pages leave this
    process's memory with the tensor.

    Args:
        file: open for reading and writing, of :func:`mapped_zeros`.
        shapes: rows and columns by name, in the file's order.
    """

    def __init__(self, file: IO[bytes], shapes: Mapping[str, tuple[int, int]]) -> None:
        self._file = file
        self._shapes = dict(shapes)
        self._offsets, self.bytes = _layout(self._shapes)

    def __getitem__(self, name: str) -> torch.Tensor:
        import torch

        rows, columns = self._shapes[name]
        memory = mmap.mmap(self._file.fileno(), 4 * rows * columns, offset=self._offsets[name])
        return torch.frombuffer(memory, dtype=torch.float32).reshape(rows, columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


@contextlib.contextmanager
def mapped_zeros(shapes: Mapping[str, tuple[int, int]], folder: Path) -> Iterator[MappedTensors]:
    """Yield matrices of zeros in an unnamed file, which disappears with this process.

    Args:
        shapes: rows and columns, both at least 1, by name.
        folder: on the disk that has room for the file, 4 bytes an element.

    Raises:
        ConfigError: the file cannot be written.
    """
    _, size = _layout(shapes)
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
            # Written and not left as a hole: a disk that fills up under a mapped file kills the process.
            block = bytes(_BLOCK)
            for start in range(0, size, _BLOCK):
                file.write(block[: size - start])
            file.flush()
        except OSError as error:
            raise no_room(folder, error) from error
        yield MappedTensors(file, shapes)


@contextlib.contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """Yield a temporary folder inside another one; delete it when the block ends.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix=".zoexport-", dir=beside)
    except OSError as error:
        raise no_room(beside, error) from error
    with folder as name:
        yield Path(name)


def no_room(folder: Path, error: Exception) -> ConfigError:
    """Return the error for scratch files that cannot be written."""
    return ConfigError(
        f"scratch files in {folder}",
        found=getattr(error, "strerror", None) or first_line(error),
        expected="a place that can be written, with 4 bytes for each of the model's weights",
        fix="Free space, or choose an output on another disk. Nothing was written.",
    )


def _layout(shapes: Mapping[str, tuple[int, int]]) -> tuple[dict[str, int], int]:
    """Return the offset of each matrix and the end of the last; only whole pages can be mapped."""
    offsets, end = {}, 0
    for name, (rows, columns) in shapes.items():
        offsets[name] = -(-end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        end = offsets[name] + 4 * rows * columns
    return offsets, end
