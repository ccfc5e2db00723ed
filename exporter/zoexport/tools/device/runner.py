"""The runner for a phone: a folder with zoexport-runner and the libraries that it needs."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from zoexport.core.adb import Phone
from zoexport.core.errors import DeviceError
from zoexport.core.files import atomic_folder
from zoexport.core.resources import checkout

RUNNER = "zoexport-runner"
PROGRAM = f"{RUNNER}.bin"
"""The program itself, where :data:`RUNNER` is the script that starts it with its own loader."""
LAUNCHER = "ZOEXPORT_LAUNCHER"
"""Of an emulator: the command that the loader is run by."""
BUILD = Path("build") / "aarch64" / "native" / "runtime_ops"
"""Folder of a checkout to which ``make device-runner`` builds the runner."""
SYSROOT = Path("/usr/aarch64-linux-gnu/lib")
"""Debian's libraries for 64-bit ARM, of the package libc6-arm64-cross."""
_MACHINES = {"arm64-v8a": 183, "x86_64": 62}
"""e_machine of an ELF file for each of Android's 64-bit ABIs."""
# Android has no glibc, so its loader and libraries are in this folder; /bin/sh: since Android 10.
_SCRIPT = f"""#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
exec ${LAUNCHER} "$here/LOADER" --library-path "$here" "$here/{PROGRAM}" "$@"
"""


def check_runner(folder: Path, phone: Phone) -> None:
    """Refuse a runner that the phone cannot start.

    Raises:
        DeviceError: there is none, it is no program, or it is one for another processor.
    """
    path = folder / RUNNER
    abi = phone.abi()
    try:
        path.stat()
        head = (folder / PROGRAM if (folder / PROGRAM).exists() else path).read_bytes()[:20]
    except OSError as error:
        raise DeviceError(
            f"--runner {folder}",
            found=f"no {RUNNER} ({(error.strerror or str(error)).lower()})",
            expected=f"a folder with {RUNNER} and its libraries",
            fix="Make one with 'zoexport device runner' (docs/android.md).",
        ) from error
    machine = struct.unpack_from("<H", head, 18)[0] if head[:5] == b"\x7fELF\x02" else None
    if machine is None or machine != _MACHINES.get(abi):
        known = {number: name for name, number in _MACHINES.items()}
        raise DeviceError(
            f"{path}",
            found="no 64-bit program"
            if machine is None
            else f"a program for {known.get(machine, f'machine {machine}')}",
            expected=f"one for {abi}, which {phone.serial} runs",
            fix="Build it for that processor (docs/android.md).",
        )


def make_runner(
    output: Path, *, build: Path | None = None, sysroot: Path = SYSROOT, force: bool
) -> dict[str, Any]:
    """Write a folder with the runner for 64-bit ARM and all that it needs: the loader, the C and C++ libraries too.

    So it runs on Android, in its shell, without the NDK.

    Args:
        output: the folder, written whole or not at all.
        build: folder with the runner and libzoexport.so for aarch64 Linux. Default: :data:`BUILD` of the checkout
            that contains this package.
        sysroot: with that system's libraries.
        force: replace what is there.

    Returns:
        The keys of ``device runner --json``.

    Raises:
        DeviceError: the runner or a library is not there, or binutils' readelf is not. ConfigError: ``output``.
    """
    root = checkout()
    if build is None and root is None:
        raise DeviceError(
            "device runner",
            found="an installed package, which has programs for this machine only",
            expected=f"{RUNNER} for 64-bit ARM",
            fix=f"Run 'make device-runner' in a checkout of zoexport, and pass --build CHECKOUT/{BUILD}.",
        )
    build = build or (root or Path()) / BUILD
    program = build / RUNNER
    if not program.is_file():
        raise DeviceError(
            f"{build}",
            found=f"no {RUNNER}",
            expected="a build for 64-bit ARM",
            fix=f"Run 'make device-runner' in {root or 'a checkout of zoexport'}, or pass --build.",
        )
    libraries = {path.name: path for path in _needed(program, [build, sysroot])}
    loader = _loader(program)
    if not (sysroot / loader).is_file():
        raise _missing(loader, [sysroot])
    with atomic_folder(output, replace=force) as folder:
        shutil.copy(program, folder / PROGRAM)
        for name, path in {**libraries, loader: sysroot / loader}.items():
            shutil.copy(path, folder / name)
        script = folder / RUNNER
        script.write_text(_SCRIPT.replace("LOADER", loader))
        for path in folder.iterdir():
            path.chmod(0o755)
    files = sorted(path.name for path in output.iterdir())
    size = sum((output / name).stat().st_size for name in files)
    return {"runner": str(output), "files": files, "bytes": size}


def _needed(program: Path, folders: Sequence[Path]) -> Iterator[Path]:
    """Yield a program's libraries, recursively, found in its own paths or in ``folders``."""
    waiting, seen = [program], set()
    while waiting:
        name = waiting.pop()
        dynamic = _readelf("-d", name)
        paths = [
            path
            for line in re.findall(r"R(?:UN)?PATH.*\[(.*)\]", dynamic)
            for path in line.split(":")
        ]
        places = [*(Path(path) for path in paths if path.startswith("/")), *folders]
        for library in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
            if library in seen or library.startswith("ld-linux"):
                continue
            seen.add(library)
            found = next((place / library for place in places if (place / library).is_file()), None)
            if found is None:
                raise _missing(library, places)
            waiting.append(found)
            yield found


def _loader(program: Path) -> str:
    """Return the name of the loader in a program's header."""
    found = re.search(r"interpreter: .*/([^/\]]+)\]", _readelf("-l", program))
    if found is None:
        raise DeviceError(
            f"{program}",
            found="a program without a loader",
            expected="one that is linked with glibc",
            fix="Build it with cmake/aarch64-linux-gnu.cmake.",
        )
    return found[1]


def _readelf(option: str, path: Path) -> str:
    try:
        done = subprocess.run(
            ["readelf", option, str(path)], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise DeviceError(
            "readelf",
            found=str(error),
            expected=f"binutils' readelf, and {path} an ELF file",
            fix="Install it (Debian, Ubuntu: apt-get install binutils), or build the runner again.",
        ) from error
    return done.stdout


def _missing(library: str, places: Sequence[Path]) -> DeviceError:
    return DeviceError(
        f"library {library}",
        found="no such file in " + ", ".join(str(place) for place in dict.fromkeys(places)),
        expected="the runner's library for 64-bit ARM",
        fix="Install Debian's cross compiler (g++-aarch64-linux-gnu), or pass --sysroot.",
    )
