"""Readers of weights by name, a tensor or some of its rows at a time, in memory or files."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from zoexport.core.errors import ModelError, first_line
from zoexport.core.untouched import untouched_zeros

if TYPE_CHECKING:
    import torch

_PIECE_BYTES = 1 << 26
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class WeightReader(Protocol):
    """Reader of a model's parameters and persistent buffers by name, including tied names.

    Floating-point tensors are returned as float32, others unchanged; all are contiguous. They may
    share the memory of the model, so they must not be written.
    """

    def names(self) -> list[str]:
        """Return all names, in the model's order."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of ``read(name)``.

        Raises:
            KeyError: no weight has this name; the other methods raise it too.
        """

    def read(self, name: str) -> torch.Tensor:
        """Return the whole tensor.

        Raises:
            ModelError: its file can no longer be read.
        """

    def read_rows(self, name: str, begin: int, end: int) -> torch.Tensor:
        """Return rows ``begin`` to ``end`` (exclusive) of the first dimension: (end - begin, ...).

        Raises:
            IndexError: the tensor does not have these rows.
            ModelError: its file can no longer be read.
        """


class LoadedWeights:
    """:class:`WeightReader` of a model with its weights in memory."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._tensors: dict[str, torch.Tensor] = model.state_dict()

    def names(self) -> list[str]:
        """Return all names, in the model's order."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of ``read(name)``."""
        return tuple(self._tensors[name].shape)

    def read(self, name: str) -> torch.Tensor:
        """Return the whole tensor."""
        tensor = self._tensors[name]
        return (tensor.float() if tensor.is_floating_point() else tensor).contiguous()

    def read_rows(self, name: str, begin: int, end: int) -> torch.Tensor:
        """Return the rows ``begin`` to ``end`` (exclusive)."""
        tensor = self._tensors[name]
        _check_rows(name, tuple(tensor.shape), begin, end)
        rows = tensor[begin:end]
        return (rows.float() if rows.is_floating_point() else rows).contiguous()


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """Tensor in a safetensors file.

    Attributes:
        path: file. key: name of the tensor in the file.
        floating: True for a floating-point tensor.
    """

    path: Path
    key: str
    shape: tuple[int, ...]
    floating: bool

    def read(self) -> torch.Tensor:
        """Return the tensor: float32 if floating-point, else unchanged.

        Raises:
            ModelError: the file can no longer be read.
        """
        if self.shape:
            return self.read_rows(0, self.shape[0])
        with open_safetensors(self.path) as file:
            value: torch.Tensor = file.get_tensor(self.key).clone()
        return value.float() if self.floating else value

    def read_rows(self, begin: int, end: int) -> torch.Tensor:
        """Return some rows of :meth:`read`.

        Memory use is these rows plus one chunk of the file at a time.
        """
        import torch

        _check_rows(self.key, self.shape, begin, end)
        rows: torch.Tensor | None = None
        for first, last in row_pieces(self.shape, begin, end):
            # Map the file again for each chunk: its pages count as memory of this process.
            with open_safetensors(self.path) as file:
                piece: torch.Tensor = file.get_slice(self.key)[first:last]
                if rows is None:
                    dtype = torch.float32 if self.floating else piece.dtype
                    rows = untouched_zeros((end - begin, *self.shape[1:]), dtype)
                rows[first - begin : last - begin] = piece
                del piece
        assert rows is not None
        return rows

    def stored(self) -> Iterator[StoredTensor]:
        """Yield this tensor, like :meth:`JoinedTensor.stored`."""
        yield self


@dataclasses.dataclass(frozen=True)
class JoinedTensor:
    """Tensor that is joined from stored tensors, such as the fused weights of experts.

    Attributes:
        parts: tensors that are joined.
        dim: dimension along which they are concatenated, never the first; None if they are stacked
            along a new first dimension.
    """

    parts: tuple[Stored, ...]
    dim: int | None
    shape: tuple[int, ...]

    @property
    def path(self) -> Path:
        """File of the first part."""
        return self.parts[0].path

    @property
    def key(self) -> str:
        """Names of the first and the last part in their files."""
        return f"{self.parts[0].key} to {self.parts[-1].key}"

    def read(self) -> torch.Tensor:
        """Return the tensor as float32."""
        return self.read_rows(0, self.shape[0])

    def read_rows(self, begin: int, end: int) -> torch.Tensor:
        """Return some rows of :meth:`read`; other rows are not read."""
        import torch

        _check_rows(self.key, self.shape, begin, end)
        if self.dim is None:
            return torch.stack([part.read() for part in self.parts[begin:end]])
        return torch.cat([part.read_rows(begin, end) for part in self.parts], self.dim)

    def stored(self) -> Iterator[StoredTensor]:
        """Yield the stored tensors."""
        for part in self.parts:
            yield from part.stored()


Stored = StoredTensor | JoinedTensor
"""Tensor in safetensors files."""


class StoredWeights:
    """:class:`WeightReader` of a model whose weights are in safetensors files."""

    def __init__(self, tensors: Mapping[str, Stored]) -> None:
        self._tensors = dict(tensors)

    def names(self) -> list[str]:
        """Return all names, in the model's order."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of ``read(name)``."""
        return self._tensors[name].shape

    def read(self, name: str) -> torch.Tensor:
        """Return the whole tensor."""
        stored = self._tensors[name]
        return check_finite(f"weights {stored.path}", stored.key, stored.read())

    def read_rows(self, name: str, begin: int, end: int) -> torch.Tensor:
        """Return the rows ``begin`` to ``end`` (exclusive)."""
        stored = self._tensors[name]
        return check_finite(f"weights {stored.path}", stored.key, stored.read_rows(begin, end))


def check_finite(where: str, name: str, values: torch.Tensor) -> torch.Tensor:
    """Check that weights are finite.

    Args:
        where: file or model, for the message. name: name of the tensor. values: the tensor or some
            of its rows.

    Returns:
        ``values``.

    Raises:
        ModelError: some are not finite.
    """
    import torch

    # A sum is much faster than a test of each element. It may overflow.
    if values.is_floating_point() and not bool(torch.isfinite(values.sum())):
        wrong = int(values.numel() - torch.isfinite(values).sum())
        if wrong:
            raise ModelError(
                where,
                found=f"NaN or infinite values in the tensor {name} ({wrong} of {values.numel()})",
                expected="finite weights",
                fix="Use a checkpoint from before its training diverged, or download it again.",
            )
    return values


def stored_dtype(files: Iterable[Path], declared: str = "float32") -> str:
    """Return torch's name of the most common floating-point type of the weights in some files.

    Args:
        files: weight files; only safetensors files are read.
        declared: type to return if no floating-point weights are found.

    Raises:
        ModelError: a file is damaged, incomplete or gone.
    """
    counts: Counter[str] = Counter()
    for path in files:
        if path.suffix != ".safetensors":
            continue
        with open_safetensors(path, "numpy") as file:
            for key in file.keys():  # noqa: SIM118, it is no mapping
                view = file.get_slice(key)
                name = _DTYPES.get(view.get_dtype())
                if name is not None:
                    counts[name] += math.prod(view.get_shape())
    return max(counts, key=lambda name: counts[name], default=declared)


def row_pieces(shape: tuple[int, ...], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Split rows of a float32 tensor into ranges of about 64 MiB, at least one row each."""
    row = 4 * math.prod(shape[1:])
    step = max(1, _PIECE_BYTES // max(1, row))
    for first in range(begin, end, step):
        yield first, min(end, first + step)


@contextlib.contextmanager
def open_safetensors(path: Path, framework: str = "pt") -> Iterator[Any]:
    """Open a safetensors file.

    This checks the header against the file's length and reads no tensor.

    Args:
        path: safetensors file.
        framework: framework of the tensors, as in ``safetensors.safe_open``; the default loads
            torch.

    Raises:
        ModelError: the file is damaged, incomplete or gone.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework=framework) as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"weights {path}",
            found=f"a damaged or incomplete file ({first_line(error)})",
            expected="a whole safetensors file",
            fix="Download the file again.",
        ) from error


def _check_rows(name: str, shape: tuple[int, ...], begin: int, end: int) -> None:
    if not shape or not 0 <= begin < end <= shape[0]:
        raise IndexError(f"{name} is {shape}; found rows {begin} to {end}")
