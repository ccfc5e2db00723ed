"""What the commands that renew reports share: their arguments, a clock on standard error, and how they end."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from research.support.page import marked, publish
from zoexport.core.errors import ConfigError, ZoExportError
from zoexport.tools.bench.rounds import Plan


class Clock:
    """Time since it was made; a ``zoexport.core.progress.Progress`` that says it with each phase."""

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
    """Add the page that a report renews, and the folder of its raw runs, ``results`` by default."""
    parser.add_argument("page", type=Path, help="the page that is renewed")
    parser.add_argument("--results", type=Path, default=results, help="the folder of its raw runs")


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
        publish(chosen.page, mark, measure(chosen.model, clock))

    return exit_status(renewed)


@dataclasses.dataclass(frozen=True)
class Measured:
    """A report of several measurements, each of which is taken where there is none yet.

    Attributes:
        mark: of the page's part. results: the default folder of raw runs.
        known: names of the measurements. kind: what each is, such as a model; a plural by s.
        is_there: whether a folder has a measurement's figures.
        measure: takes one into a folder, by a plan, with bundles kept in a place; None is the cache.
        text: returns the page's part, from all figures in a folder.
    """

    mark: str
    results: Path
    kind: str
    known: Collection[str]
    is_there: Callable[[Path, str], bool]
    measure: Callable[[str, Path, Plan, Path | None, Clock], None]
    text: Callable[[Path], str]


def renew_measured(
    arguments: Sequence[str] | None, description: str, report: Measured, *, steps: int
) -> int:
    """The command of such a report; returns its exit status.

    Args:
        arguments: of the command; None: the process's own.
        steps: in a round, where the command names no others.
    """
    parser = argparse.ArgumentParser(description=description)
    add_places(parser, report.results)
    plural, names = f"{report.kind}s", ",".join(report.known)
    parser.add_argument(
        f"--{plural}", dest="names", default=names, help="those measured that have no figures"
    )
    parser.add_argument("--again", action="store_true", help="measure also those that have figures")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--work", type=Path, help="where bundles are kept")
    parser.add_argument(
        "--minutes", type=float, help=f"after which no other {report.kind} is begun"
    )
    chosen = parser.parse_args(arguments)
    plan = Plan(chosen.rounds, chosen.steps, warmup=1)

    def renewed(clock: Clock) -> None:
        marked(chosen.page, report.mark)
        wanted = [name for name in chosen.names.split(",") if name]
        for name in wanted:
            if name not in report.known:
                raise ConfigError(
                    f"{report.kind} {name}",
                    found="none of this report's",
                    expected=", ".join(report.known),
                    fix="Choose from these.",
                )
        for name in wanted:
            missing = chosen.again or not report.is_there(chosen.results, name)
            if missing and clock.within(chosen.minutes):
                report.measure(name, chosen.results, plan, chosen.work, clock)
            publish(chosen.page, report.mark, report.text(chosen.results))

    return exit_status(renewed)
