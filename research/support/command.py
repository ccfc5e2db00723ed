"""What the commands that renew reports share: their arguments, a clock on standard error, and how they end."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from research.support.page import marked, replace
from zoexport.core.errors import ZoExportError


class Clock:
    """Time since it was made; a ``zoexport.core.types.Progress`` that says it with each phase."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def minutes(self) -> float:
        """Since the start."""
        return (time.monotonic() - self._start) / 60

    def within(self, minutes: float | None) -> bool:
        """Whether fewer have passed; None is no limit."""
        return minutes is None or self.minutes() < minutes

    def __call__(self, phase: str, done: float | None) -> None:
        """Say what is being done."""
        share = "" if done is None else f" ({done:.0%} of it)"
        sys.stderr.write(f"{self.minutes():5.1f} min  {phase}{share}\n")


def add_places(parser: argparse.ArgumentParser, results: Path) -> None:
    """Add where a report goes: a page, and a folder that is ``results`` where none is given."""
    parser.add_argument("page", type=Path, help="the page that is renewed")
    parser.add_argument(
        "--results", type=Path, default=results, help="the folder of its pictures and figures"
    )


def exit_status(measure: Callable[[Clock], object]) -> int:
    """Measure and renew a report; returns the command's exit status."""
    try:
        measure(Clock())
    except ZoExportError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def renew_part(
    arguments: Sequence[str] | None,
    description: str,
    mark: str,
    model: str,
    measure: Callable[[str, Clock], str],
) -> int:
    """The command of a report that is one marked part of a page; returns its exit status.

    Args:
        arguments: of the command; None: the process's own.
        model: that is measured where ``--model`` names no other.
        measure: makes the part's text of a model.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("page", type=Path, help="whose marked part is renewed")
    parser.add_argument("--model", default=model)
    chosen = parser.parse_args(arguments)

    def renewed(clock: Clock) -> None:
        marked(chosen.page, mark)
        replace(chosen.page, mark, measure(chosen.model, clock))

    return exit_status(renewed)
