"""Files and folders that are either whole or absent: temporary name, sync, rename."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zoexport.core.errors import ConfigError


def sha256(path: Path) -> str:
    """The SHA-256 of a file as 64 hexadecimal digits, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot_write(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"output {path}",
        found=error.strerror or str(error),
        expected="a place that can be written, with room for the files",
        fix="Choose another path, or free space there. Nothing was written.",
    )


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it is synced and renamed to it.

    Raises:
        ConfigError: the place cannot be written or is full; nothing is left behind.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
        yield temporary
        temporary.chmod(0o644)
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def private_folder(path: Path) -> None:
    """Make a folder that its user alone can enter; one that is there already, and is this user's, becomes so.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.stat().st_uid == os.geteuid():
            path.chmod(0o700)
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_json(path: Path, content: Mapping[str, Any], *, allow_nan: bool = False) -> None:
    """Write a mapping as JSON, whole or not at all.

    Raises:
        ConfigError: the place cannot be written. ValueError: a number that JSON does not have, unless ``allow_nan``.
    """
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=allow_nan)
    with atomic_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


@contextlib.contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; on success its files are synced and it takes the name.

    Args:
        path: the final folder.
        replace: whether a folder that is already there gives way once the new one is complete.

    Raises:
        ConfigError: ``path`` exists and ``replace`` is off, or the place cannot be written.
    """
    if path.exists() and not replace:
        raise ConfigError(
            f"output {path}",
            found="something that is already there",
            expected="a path that does not exist yet",
            fix="Choose another path, or pass --force to replace it.",
        )
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        yield temporary
        temporary.chmod(0o755)
        for file in temporary.rglob("*"):
            _sync(file)
        if path.exists():
            retired = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            path.replace(retired / path.name)
            temporary.replace(path)
            shutil.rmtree(retired)
        else:
            temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        if temporary is not None and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)
