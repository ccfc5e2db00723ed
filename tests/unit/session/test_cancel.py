"""Calls that are ended: an evaluation and a file that is read; cancel() beside close()."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.bundles import LinearModel
from tests.support.sessions import open_session
from zoexport.core.errors import Cancelled
from zoexport.session import Dataset, Session, abi


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


class Evaluating:
    """A session that evaluates 200 examples; ``before`` is done before each call of a program."""

    def __init__(self, bundle: Path, before: Callable[[int], None]) -> None:
        self.calls = 0
        engine = LinearModel()

        def run(*given: Any) -> None:
            self.calls += 1
            before(self.calls)
            engine(*given)

        self.session = Session.open(bundle, engine=run)
        self.dataset = Dataset()
        for example in range(200):
            self.dataset.add([([1, 2, 3 + example % 3], [2, 3, -100])])


def test_cancel_ends_an_evaluation_and_the_next_one_is_whole(bundle: Path) -> None:
    made = Evaluating(bundle, lambda call: made.session.cancel() if call == 3 else None)
    with made.session as session, made.dataset as dataset:
        session.cancel()  # nothing runs: of no effect on what follows
        with pytest.raises(Cancelled, match="the evaluation"):
            session.evaluate(dataset)
        assert made.calls == 3
        assert session.evaluate(dataset).examples == 200


def test_progress_ends_an_evaluation(bundle: Path) -> None:
    seen: list[tuple[int, int]] = []

    def on_part(done: int, total: int) -> bool:
        seen.append((done, total))
        return len(seen) == 3

    made = Evaluating(bundle, lambda call: time.sleep(0.06))
    with made.session as session, made.dataset as dataset:
        with pytest.raises(Cancelled):
            session.evaluate(dataset, on_part)
        assert [total for _, total in seen] == [200] * 3
        assert [done for done, _ in seen] == sorted({done for done, _ in seen})
        assert seen[0][0] == 0

        def fails(done: int, total: int) -> bool:
            raise KeyError("of the host")

        with pytest.raises(KeyError, match="of the host"):
            session.evaluate(dataset, fails)


def test_ctrl_c_ends_an_evaluation(bundle: Path) -> None:
    def before(call: int) -> None:
        if call == 2:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.06)

    made = Evaluating(bundle, before)
    with made.session as session, made.dataset as dataset, pytest.raises(Cancelled):
        session.evaluate(dataset)
    assert made.calls in (2, 3)
