"""Memory of a process: seen from outside, and given back."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_INTERVAL = 0.01
"""Seconds between two looks; one takes some 20 us of a core that mostly waits."""


def status(key: str, process: int | str = "self") -> float | None:
    """Return a size in /proc/<process>/status in MB; None if it is unavailable."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{key}:"):
                return round(int(line.split()[1]) * 1024 / 1e6, 1)
    return None


@contextlib.contextmanager
def anonymous_peak(process: int) -> Iterator[Callable[[], float | None]]:
    """Sample a process's RssAnon every 10 ms within the block.

    A single look after a step misses memory that the step itself allocates and frees.

    Yields:
        A function that returns the peak so far, in MB; None if it is unavailable.
    """
    done = threading.Event()
    most: list[float] = []

    def look() -> None:
        while True:
            now = status("RssAnon", process)
            if now is not None:
                most[:] = [max([now, *most])]
            if done.wait(_INTERVAL):
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lambda: most[0] if most else None
    finally:
        done.set()
        thread.join()


def give_back() -> None:
    """Return freed memory to the system with malloc_trim, if available; glibc keeps heap holes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


@contextlib.contextmanager
def heap_left_out() -> Iterator[None]:
    """Restrict the garbage collector to objects created within the block.

    A process with PyTorch and transformers has a million objects; scanning them takes as long as
    compiling a small model. Garbage is collected at the end. If the caller has frozen objects
    itself, this has no effect.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
