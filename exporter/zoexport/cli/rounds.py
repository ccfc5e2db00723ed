"""Rounds of a federation on standard error: a growing table on a terminal, else plain lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zoexport.cli.console import size

if TYPE_CHECKING:
    from rich.live import Live

_ROWS = 20


class Rounds:
    """Callback for each round, and a ``zoexport.core.progress.Progress`` (:meth:`phase`)."""

    def __init__(self, *, as_json: bool) -> None:
        self._live: Live | None = None
        self._terminal = sys.stderr.isatty()
        self._silent = as_json and not self._terminal
        self._rows: list[list[str]] = []
        self._phase = ""

    def __enter__(self) -> Rounds:
        if self._terminal:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                self._table(), console=Console(file=sys.stderr), redirect_stdout=False
            )
            self._live.start()
        return self

    def phase(self, phase: str, done: float | None) -> None:
        """Report a phase before the first round."""
        if phase != self._phase and not self._silent:
            self._phase = phase
            if self._live is not None:
                self._live.update(self._table())
            else:
                print(f"federate: {phase}", file=sys.stderr, flush=True)

    def __call__(self, content: Mapping[str, Any]) -> None:
        """Report a round that has been written to disk."""
        from zoexport.federated.report import HEADER, row

        cells = row(content)
        texts = [_text(name, cell) for name, cell in zip(HEADER, cells, strict=True)]
        self._rows.append(texts)
        if self._live is not None:
            self._live.update(self._table())
        elif not self._silent:
            named = zip(HEADER, texts, strict=True)
            line = "  ".join(f"{name} {text}" for name, text in named if text != "-")
            print(f"federate: {line}", file=sys.stderr, flush=True)

    def _table(self) -> Any:
        from rich.table import Table

        from zoexport.federated.report import HEADER

        shown = Table(caption=self._phase if not self._rows else None)
        for name in HEADER:
            shown.add_column(name, justify="right")
        for texts in self._rows[-_ROWS:]:
            shown.add_row(*texts)
        return shown

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


def _text(name: str, cell: Any) -> str:
    if cell is None:
        return "-"
    if name in ("up", "down"):
        return size(cell)
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
