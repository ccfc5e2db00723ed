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
    """A size in /proc/<process>/status in MB, None where the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{key}:"):
                return round(int(line.split()[1]) * 1024 / 1e6, 1)
    return None


@contextlib.contextmanager
def anonymous_peak(process: int) -> Iterator[Callable[[], float | None]]:
    """While inside, look at a process's RssAnon every 10 ms.

    What a step takes and gives back within itself is missed by a look after the step.

    Yields:
        The most that was seen so far, in MB; None where the system does not say.
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
    """Have the C library give freed memory back to the system, where it can; glibc keeps holes in its heap."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


@contextlib.contextmanager
def heap_left_out() -> Iterator[None]:
    """Have the garbage collector look at what is made within alone.

    A process that has PyTorch and transformers has a million objects, and to look at all of them takes as long as
    compiling a small model. What is garbage at the end is freed. Where the caller has frozen objects of its own
    nothing is left out.
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
