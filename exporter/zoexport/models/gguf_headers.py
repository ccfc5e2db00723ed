"""Headers of GGUF files, each read once while a model is loaded.

transformers reads a file's header four times, for configuration, tokenizer and weights, and the package gguf slices it
into an array for each of the vocabulary's strings, by NumPy's class for mapped files, whose slices cost several times
as much as those of plain arrays.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


@contextlib.contextmanager
def headers_read_once() -> Iterator[None]:
    """While this is open, a file's header is read once, and an architecture's names of tensors are listed once."""
    import gguf

    package: Any = gguf
    reader, names = package.GGUFReader, package.get_tensor_name_map

    class PlainReader(reader):  # type: ignore[misc, valid-type]
        """Slices a plain array over the mapped file."""

        @property
        def data(self) -> NDArray[np.uint8]:
            return self._data

        @data.setter
        def data(self, mapped: NDArray[np.uint8]) -> None:
            self._data = mapped.view(np.ndarray)

    read = functools.cache(PlainReader)
    package.GGUFReader = lambda path: read(os.fspath(path))
    package.get_tensor_name_map = functools.cache(names)
    try:
        yield
    finally:
        package.GGUFReader, package.get_tensor_name_map = reader, names
