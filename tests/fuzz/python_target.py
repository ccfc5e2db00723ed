"""What the targets in Python share: atheris runs them where it is there, and pytest what was kept."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def instrumented() -> Iterator[None]:
    """Modules of zoexport that are imported meanwhile tell atheris what they reach, in a process that it runs."""
    if "atheris" not in sys.modules:
        yield
        return
    import atheris

    with atheris.instrument_imports(include=["zoexport"]):
        yield


def main(target: Callable[[bytes], None]) -> None:
    """Let atheris run a target, with libFuzzer's arguments."""
    import atheris

    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


def folder() -> Path:
    """A folder in memory, the same for all inputs of a process."""
    root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="zoexport-fuzz-", dir=root))


def check(holds: object) -> None:
    """What must hold of an input."""
    if not holds:
        raise AssertionError


def check_error(error: Any) -> None:
    """What must hold of an error: it has its four parts."""
    check(error.where and error.found and error.expected and error.fix)


def parts(data: bytes, count: int) -> list[bytes]:
    """An input as so many pieces: each but the last has its length in two bytes before it."""
    found = []
    for _ in range(count - 1):
        size = int.from_bytes(data[:2], "big")
        found.append(data[2 : 2 + size])
        data = data[2 + size :]
    return [*found, data]


def joined(*pieces: bytes) -> bytes:
    """Pieces as :func:`parts` takes them."""
    *sized, last = pieces
    return b"".join(len(piece).to_bytes(2, "big") + piece for piece in sized) + last
