"""core.memory: what the system says of a process's memory."""

from __future__ import annotations

import gc
import mmap
import os
import time
import weakref

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


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_the_heap_is_left_out_of_collections_until_the_end() -> None:
    assert gc.get_freeze_count() == 0
    old = _Cycle()
    of_old = weakref.ref(old)
    with memory.heap_left_out():
        assert gc.get_freeze_count() > 1000
        del old
        of_new = weakref.ref(_Cycle())
        gc.collect()
        assert of_new() is None and of_old() is not None
        of_later = weakref.ref(_Cycle())
        with memory.heap_left_out():  # somebody has frozen it
            pass
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0 and of_later() is None
    gc.collect()
    assert of_old() is None


def test_the_heap_is_given_back_after_an_error() -> None:
    with pytest.raises(KeyError), memory.heap_left_out():
        raise KeyError
    assert gc.get_freeze_count() == 0
