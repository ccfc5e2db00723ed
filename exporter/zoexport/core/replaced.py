"""Attributes of other packages, replaced for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """While this is open, attributes have other values.

    Args:
        changes: (owner, name, value); the owner is a module, a class or an object.
    """
    originals = [getattr(owner, name) for owner, name, _ in changes]
    for change in changes:
        setattr(*change)
    try:
        yield
    finally:
        for (owner, name, _), original in zip(changes, originals, strict=True):
            setattr(owner, name, original)
