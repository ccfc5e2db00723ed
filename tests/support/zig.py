"""Zig's package: a Clang with the headers and libraries of other systems."""

from __future__ import annotations

import zipfile
from pathlib import Path

from zoexport.core.errors import DataError
from zoexport.core.fetch import Package, downloaded

_ZIG = Package(
    "ziglang", "0.17.1", "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54"
)


def unpacked(folder: Path) -> Path:
    """The program, fetched and unpacked into ``folder``."""
    with downloaded(_ZIG, DataError) as wheel, zipfile.ZipFile(wheel) as content:
        content.extractall(folder)
    program = folder / "ziglang" / "zig"
    program.chmod(0o755)
    return program
