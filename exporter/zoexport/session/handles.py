"""What the session's library makes for a host, and the host frees: once, at the end of a ``with`` statement."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, TypeVar

from zoexport.core.errors import ZoExportError
from zoexport.session import abi

_Self = TypeVar("_Self", bound="Closing")


class Closing(ABC):
    """What a ``with`` statement closes."""

    @abstractmethod
    def close(self) -> None:
        """Free it; later calls are errors. Closing twice is allowed."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Handle(Closing):
    """An object of the library, by its handle.

    Args:
        handle: what the library gave.
        what: it is, in messages.
        free: the function that frees it.
    """

    def __init__(self, handle: int | None, *, what: str, free: str) -> None:
        self._handle = handle
        self._what = what
        self._free = free
        # Held while the handle goes, and by what need not wait for the call that runs.
        self._gate = threading.Lock()

    @property
    def handle(self) -> int:
        """The library's handle.

        Raises:
            ZoExportError: it is closed.
        """
        if not self._handle:
            raise ZoExportError(
                self._what,
                found="a closed one",
                expected="an open one",
                fix=f"Open the {self._what} again.",
            )
        return self._handle

    def _beside(self, function: str, *arguments: Any) -> None:
        """Call a function that may run beside the call that runs; after :meth:`close` nothing happens."""
        with self._gate:
            if self._handle:
                getattr(abi.library(), function)(self._handle, *arguments)

    def close(self) -> None:
        """Free it; later calls are errors. Closing twice is allowed."""
        with self._gate:
            handle, self._handle = self._handle, None
        if handle:
            getattr(abi.library(), self._free)(handle)
