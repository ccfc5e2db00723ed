"""core.memory: what the system says of a process's memory."""

from __future__ import annotations

import mmap
import os
import time

import pytest

from zoexport.core import memory


def test_memory_that_comes_and_goes_is_seen() -> None:
    with memory.anonymous_peak(os.getpid()) as peak:
        before = memory.status("RssAnon")
        if before is None:
            pytest.skip("this system does not say")
        # From the system itself: the allocator may hold as much memory of earlier tests.
        with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
            block[:] = b"x" * len(block)
            time.sleep(0.1)
        time.sleep(0.05)
        seen = peak()
    assert seen is not None and seen > before + 50
