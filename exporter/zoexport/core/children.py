"""Child processes that do not outlive this one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
_POLL = 0.2
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent is gone; for a child that is about to run a program."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def runs(process: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


def die_with(process: int) -> None:
    """End this process at once when another process, not necessarily its parent, has ended."""

    def watch() -> None:
        while runs(process):
            time.sleep(_POLL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def child(
    arguments: Sequence[str],
    *,
    stdin: int = subprocess.DEVNULL,
    errors: IO[Any],
    environment: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
) -> Iterator[subprocess.Popen[str]]:
    """Start a process and yield it; kill it when the block ends, also after an exception.

    Args:
        stdin: standard input of the process.
        errors: file for its standard error.
        environment: variables in addition to this process's own.
        descriptors: file descriptors that stay open in the process.
    """
    process = subprocess.Popen(
        list(arguments),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, **(environment or {})},
        preexec_fn=die_with_parent,
        pass_fds=descriptors,
    )
    with ended(process):
        yield process


@contextlib.contextmanager
def ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Kill the process and close its pipes when the block ends, also after an exception."""
    try:
        yield
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def python(module: str, *arguments: object) -> tuple[list[str], dict[str, str]]:
    """Return the command line that runs one of our modules, and the variables it needs."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    # `-m` would put the working folder first on the path, where a stray json.py could hide a module.
    environment = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    return [sys.executable, "-m", module, *map(str, arguments)], environment


def last_line(errors: IO[bytes]) -> str:
    """Return the last line that a child wrote to its standard error."""
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "no message"
