"""cancel() beside close(): never with a handle that is gone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.sessions import open_session
from zoexport.session import abi


class Gates:
    """The library's two functions; ``zo_session_cancel`` waits within until the test lets it go on."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.entered, self.leave = threading.Event(), threading.Event()
        self.closed_meanwhile: bool | None = None
        self.closed = False

    def zo_session_cancel(self, handle: int) -> None:
        self.entered.set()
        self.leave.wait(0.5)
        self.closed_meanwhile = self.closed
        if not self.closed:
            self.library.zo_session_cancel(handle)

    def zo_session_close(self, handle: int) -> None:
        self.closed = True
        self.library.zo_session_close(handle)


def test_close_waits_for_a_cancel_that_is_under_way(
    monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    session = open_session(bundle)
    gates = Gates(abi.library())
    monkeypatch.setattr(abi, "library", lambda: gates)
    cancelling = threading.Thread(target=session.cancel)
    cancelling.start()
    assert gates.entered.wait(10)
    closing = threading.Thread(target=session.close)
    closing.start()
    cancelling.join(10)
    closing.join(10)
    assert gates.closed_meanwhile is False and gates.closed


def test_cancel_after_close_does_nothing(bundle: Path) -> None:
    session = open_session(bundle)
    session.cancel()  # nothing runs
    session.close()
    session.cancel()
    session.close()
