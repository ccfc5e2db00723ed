"""Checks the native files of a macOS wheel, which cannot run on Linux: python cmake/check_macos_wheel.py WHEEL.

Each must be a signed Mach-O file for Apple silicon, for macOS 14 or older, whose libraries are the system's, its own,
or ExecuTorch's beside it in site-packages. It prints what each file needs; a file that is otherwise ends the script.
"""

from __future__ import annotations

import re
import struct
import sys
import zipfile

_ARM64, _LOAD, _RPATH, _SIGNATURE, _BUILD = 0x0100000C, 0xC, 0x8000001C, 0x1D, 0x32
_NEEDED = r"/usr/lib/lib[\w+.]*dylib|@rpath/lib(executorch\w*|zoexport\w*)\.dylib"
_RPATHS = {"@loader_path", "@loader_path/../../executorch/lib"}
_MACOS = 14


def commands(content: bytes) -> list[tuple[int, bytes]]:
    """Return kind and bytes of each load command of a 64-bit Mach-O file for ARM."""
    magic, machine, _, _, count = struct.unpack_from("<5I", content)
    if (magic, machine) != (0xFEEDFACF, _ARM64):
        sys.exit("error: a native file is not a Mach-O file for 64-bit ARM.")
    found, place = [], 32
    for _ in range(count):
        kind, size = struct.unpack_from("<2I", content, place)
        found.append((kind, content[place : place + size]))
        place += size
    return found


def text(command: bytes) -> str:
    """Return the string of a load command, whose offset stands behind kind and size."""
    (offset,) = struct.unpack_from("<I", command, 8)
    return command[offset:].split(b"\0")[0].decode()


def check(name: str, content: bytes) -> str:
    """Return a line about a file; end the script for one that a Mac could not load."""
    found = commands(content)
    needed = [text(command) for kind, command in found if kind == _LOAD]
    foreign = [library for library in needed if not re.fullmatch(_NEEDED, library)]
    missing = _RPATHS - {text(command) for kind, command in found if kind == _RPATH}
    (oldest,) = (struct.unpack_from("<I", c, 12)[0] >> 16 for kind, c in found if kind == _BUILD)
    signed = any(kind == _SIGNATURE for kind, _ in found)
    if foreign or missing or oldest > _MACOS or not signed:
        sys.exit(
            f"error: {name}: needs {foreign or 'no foreign library'}, lacks the paths {sorted(missing)}, "
            f"needs macOS {oldest}, {'signed' if signed else 'not signed'}."
        )
    return f"{name}: macOS {oldest}, {', '.join(needed)}"


if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        natives = [
            name
            for name in wheel.namelist()
            if "/_native/" in name and "/licenses/" not in name and not name.endswith("/")
        ]
        if not any(name.endswith("libzoexport.dylib") for name in natives):
            sys.exit(f"error: {sys.argv[1]} has no libzoexport.dylib.")
        for name in natives:
            print(check(name, wheel.read(name)))
