"""The native library, loaded once a process: a second copy of it would abort ExecuTorch's registry."""

from __future__ import annotations

import ctypes
import functools

from zoexport.core import native


@functools.cache
def load_library() -> ctypes.CDLL:
    return ctypes.CDLL(str(native.library_path()), mode=ctypes.RTLD_GLOBAL)
