"""Cache of the headers of GGUF files while a model is loaded.

transformers reads the header of a file four times, for configuration, tokenizer and weights. The
package gguf slices it into one array per string of the vocabulary with NumPy's class for mapped
files, whose slices are several times slower than those of plain arrays.
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
    """Read headers, and list tensor names of architectures, only once inside the context."""
    import gguf

    package: Any = gguf
    reader, names = package.GGUFReader, package.get_tensor_name_map

    class PlainReader(reader):  # type: ignore[misc, valid-type]
        """Reader that slices a plain array over the mapped file."""

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
