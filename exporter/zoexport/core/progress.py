"""Callbacks that report the progress of long operations."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, "float | None"], None]
"""Receives the name of the current phase and the completed fraction of it, or None if unknown."""


def silent(*_: object) -> None:
    """Ignore all arguments: a :data:`Progress` that reports nothing."""


class Notice(str):
    """Sentence that a :data:`Progress` receives once, like a phase; hosts keep showing it."""
