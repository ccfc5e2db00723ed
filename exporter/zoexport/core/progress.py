"""How long work says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, "float | None"], None]


def silent(*_: object) -> None:
    """A :data:`Progress`, or another callback, where nobody watches."""


class Notice(str):
    """A sentence that a :data:`Progress` gets once, among the names of phases; hosts keep it in view."""
