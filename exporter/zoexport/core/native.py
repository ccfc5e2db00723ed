"""Paths of the native parts: library of operators and session, and standalone runner."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from zoexport.core.errors import ZoExportError

#: Names a folder that is used instead of the installed one.
ENVIRONMENT = "ZOEXPORT_NATIVE_DIR"
#: Advice for restoring the native part, in a checkout and in an installed package.
FIX = "Run 'make setup' in a checkout; elsewhere install zoexport's wheel for this machine again."
_LIBRARY = "libzoexport.dylib" if sys.platform == "darwin" else "libzoexport.so"


def native_folder() -> Path:
    """Return the folder of the native files, whether or not it exists."""
    override = os.environ.get(ENVIRONMENT)
    return Path(override) if override else Path(__file__).parents[1] / "_native"


def library_path() -> Path:
    """Return the path of the shared library with the operators and the session.

    Raises:
        ZoExportError: it was not built.
    """
    return _find(_LIBRARY, "the native library")


def find_library() -> Path | None:
    """Return :func:`library_path`, or None if the library was not built."""
    path = native_folder() / _LIBRARY
    return path if path.is_file() else None


def runner_path() -> Path:
    """Return the path of the standalone runner.

    Raises:
        ZoExportError: it was not built.
    """
    return _find("zoexport-runner", "the native runner")


def _find(name: str, what: str) -> Path:
    path = native_folder() / name
    if not path.is_file():
        raise ZoExportError(
            what,
            found=f"no file {path}",
            expected=f"{name}, built for this machine",
            fix=f"{FIX} Or set {ENVIRONMENT} to the folder that holds it.",
        )
    return path
