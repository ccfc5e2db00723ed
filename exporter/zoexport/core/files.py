"""Files and folders that are either whole or absent: temporary name, sync, rename."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from zoexport.core.errors import ConfigError

_FILE, _FOLDER, _EXECUTABLE = 0o666, 0o777, 0o111
_UMASK = threading.Lock()


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits, read in pieces."""
    with path.open("rb") as file:
        return hashed(file)


def hashed(file: IO[bytes], copy: IO[bytes] | None = None) -> str:
    """Return the SHA-256 of what is left of an open file; ``copy`` gets the same bytes."""
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
        if copy is not None:
            copy.write(block)
    return digest.hexdigest()


def open_within(folder: Path, name: str) -> IO[bytes]:
    """Open a file of a folder for reading, following no link on the way from the folder on.

    Args:
        folder: may be a link itself.
        name: of the file, with slashes between its parts.

    Raises:
        OSError: no such file, a link, a name that leads elsewhere, or something that is not a file.
    """
    *folders, last = name.split("/")
    if any(part in ("", ".", "..") for part in (*folders, last)):
        raise OSError(errno.EINVAL, "a name that leads elsewhere")
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in folders:
            inner = _open_at(at, part, os.O_DIRECTORY)
            os.close(at)
            at = inner
        descriptor = _open_at(at, last, os.O_NONBLOCK)  # not waiting where it is a pipe
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "something that is not a file")
    return os.fdopen(descriptor, "rb")


def _open_at(folder: int, name: str, flags: int) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | flags, dir_fd=folder)
    except OSError as error:
        link = False
        with contextlib.suppress(OSError):
            link = stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode)
        raise OSError(errno.ELOOP, "a link") if link else error from None


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


def umask() -> int:
    """Return the umask: the permissions that new files of this process do not get."""
    with _UMASK:  # it can only be read by setting it
        found = os.umask(0o077)
        os.umask(found)
    return found


@contextlib.contextmanager
def atomic_file(path: Path, *, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path next to ``path``; on success, sync it and rename it to ``path``.

    Args:
        path: the file.
        mode: permissions; None: by the umask. Before the rename only the owner can read the file.

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
        temporary.chmod(_FILE & ~umask() if mode is None else mode)
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


def refuse_existing(path: Path, *, replace: bool) -> None:
    """Refuse an output that is already there, unless it may be replaced.

    Raises:
        ConfigError: ``path`` exists and ``replace`` is off.
    """
    if path.exists() and not replace:
        raise ConfigError(
            f"output {path}",
            found="something that is already there",
            expected="a path that does not exist yet",
            fix="Choose another path, or pass --force to replace it.",
        )


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Hold the lock of ``path`` in the block; remove temporary folders that killed processes left.

    Args:
        path: a folder that the block writes with :func:`atomic_folder`, and nothing else writes.

    Raises:
        ConfigError: the place cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f"{path.name}.lock").open("a")
    except OSError as error:
        raise _cannot_write(path, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextlib.contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder next to ``path``; on success, sync its files and rename it.

    Args:
        path: the final folder.
        replace: whether a folder that is already there gives way once the new one is complete.

    Raises:
        ConfigError: ``path`` exists and ``replace`` is off, or the place cannot be written.
    """
    refuse_existing(path, replace=replace)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        yield temporary
        allowed = ~umask()
        temporary.chmod(_FOLDER & allowed)
        for file in temporary.rglob("*"):
            # Libraries write files of their own through temporary ones, which only their owner may read.
            if file.is_file() and not file.is_symlink():
                file.chmod((file.stat().st_mode & _EXECUTABLE | _FILE) & allowed)
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
