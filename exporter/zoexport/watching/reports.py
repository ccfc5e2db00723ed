"""``--report-to``: steps and evaluations to files and services that others read, each exactly once.

A report follows its state. When a run goes on, what the report has of steps that the state has not goes; what the
state has and the report lacks is added from the state, which keeps loss and rate of a step, but not its seconds and
its memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from zoexport.core.errors import ConfigError
from zoexport.session import Session, StepEvaluation, StepProgress

KINDS = ("tensorboard", "trackio", "jsonl")
Row = dict[str, Any]
"""``kind`` (``step`` or ``evaluation``), ``step``, and figures; None where one is not known."""

STEP_FIGURES = ("loss", "lr", "seconds", "anonymous_mb")
EVALUATION_FIGURES = ("loss", "accuracy", "token_accuracy", "margin")
_EXACT = 1e-6
"""Relative: losses in the state are float32."""


class Destination(Protocol):
    """Where a report goes."""

    def known(self, run: Mapping[str, Any]) -> list[Row]:
        """The rows that are there already.

        Raises:
            ConfigError: they are of another run, or what is there is no report.
        """

    def go_on(
        self, run: Mapping[str, Any], kept: list[Row], missing: list[Row], cut: int | None
    ) -> None:
        """Open it; rows of ``known`` but ``kept`` go, the first of which is of step ``cut``; add what is missing."""

    def write(self, row: Row) -> None:
        """Add a row."""

    def close(self) -> None:
        """Write what is left."""


class Reports:
    """The reports of one run; before :meth:`begin` nothing is opened."""

    def __init__(self, destinations: Sequence[Destination]) -> None:
        self._destinations = destinations
        self._open: list[Destination] = []

    def begin(self, session: Session, settings: Mapping[str, Any]) -> None:
        """Bring each report to the steps that the session has.

        Args:
            session: attached and configured.
            settings: the bundle's, which the run's replace where it has them.

        Raises:
            ConfigError: a place holds something else, or cannot be written.
        """
        if not self._destinations:
            return
        info = session.info
        run = {
            "bundle_id": info.bundle_id,
            "method": info.method,
            "target": info.target,
            "seed": info.seed,
            "settings": {**settings, **dataclasses.asdict(session.run)},
        }
        have = _rows_of(session)
        for destination in self._destinations:
            kept, cut = _split(destination.known(run), have)
            seen = {(row["kind"], row["step"]) for row in kept}
            missing = [row for key, row in have.items() if key not in seen]
            destination.go_on(run, kept, missing, cut)
            self._open.append(destination)

    def step(self, now: StepProgress) -> None:
        """Add a step that was taken."""
        memory = round(now.anonymous_bytes / 1e6, 1) if now.anonymous_bytes else None
        figures = (now.loss, now.lr, round(now.seconds, 6), memory)
        self._write(
            {"kind": "step", "step": now.step, **dict(zip(STEP_FIGURES, figures, strict=True))}
        )

    def evaluated(self, found: StepEvaluation) -> None:
        """Add an evaluation."""
        self._write(_evaluation(found))

    def close(self) -> None:
        """Close all of them."""
        while self._open:
            self._open.pop().close()

    def _write(self, row: Row) -> None:
        for destination in self._open:
            destination.write(row)


def reports(report_to: Sequence[str], state: Path) -> Reports:
    """The destinations that ``--report-to`` names.

    Args:
        report_to: ``KIND`` or ``KIND:PLACE`` each; a place is a file of jsonl, a folder of tensorboard, a project of
            trackio. Without one: beside the state, ``STATE.report.jsonl`` and ``STATE.tensorboard``, and ``zoexport``.
        state: the state's folder.

    Raises:
        ConfigError: no such kind, or its library is not installed.
    """
    return Reports([_destination(text, state) for text in dict.fromkeys(report_to)])


def default_file(state: Path) -> Path:
    """Where the report of a state goes without a place: beside the folder, which is the session's own."""
    state = Path(state).absolute()
    return state.with_name(state.name + ".report.jsonl")


def _destination(text: str, state: Path) -> Destination:
    kind, _, place = text.partition(":")
    if kind not in KINDS:
        raise ConfigError(
            f"--report-to {text}",
            found=repr(kind),
            expected="one of " + ", ".join(KINDS),
            fix="Choose one of them, such as --report-to jsonl or --report-to tensorboard:runs.",
        )
    state = Path(state).absolute()
    try:
        if kind == "jsonl":
            from zoexport.watching.lines import Lines

            return Lines(Path(place) if place else default_file(state))
        if kind == "tensorboard":
            from zoexport.watching.events import Events

            return Events(Path(place) if place else state.with_name(state.name + ".tensorboard"))
        from zoexport.watching.tracked import Tracked

        return Tracked(place or "zoexport", state.name)
    except ImportError as error:
        raise ConfigError(
            f"--report-to {text}",
            found=f"no {error.name or kind}",
            expected="the library that writes it",
            fix="Install it: pip install 'zoexport[report]'.",
        ) from error


def another_run(place: object, found: str) -> ConfigError:
    """That a report is of another run."""
    return ConfigError(
        f"report {place}",
        found=found,
        expected="a report of this bundle and seed, or none",
        fix="Name another place after the colon of --report-to, or remove that report.",
    )


def same_run(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two heads of reports are of one run."""
    return all(first.get(key) == second.get(key) for key in ("bundle_id", "seed"))


def same_loss(row: Row, loss: float) -> bool:
    """Whether a row is of a step, or an evaluation, with this loss."""
    found = row["loss"]
    return found is not None and math.isclose(found, loss, rel_tol=_EXACT, abs_tol=1e-9)


def _rows_of(session: Session) -> dict[tuple[str, int], Row]:
    """What the state has, in order: an evaluation follows its step."""
    found: list[Row] = [_evaluation(one) for one in session.evaluations]
    for index in range(session.info.steps):
        record = session.record(index)
        found.append(
            {
                "kind": "step",
                "step": index + 1,
                "loss": record.loss,
                "lr": record.lr,
                "seconds": None,
                "anonymous_mb": None,
            }
        )
    found.sort(key=lambda row: (row["step"], row["kind"] == "evaluation"))
    return {(row["kind"], row["step"]): row for row in found}


def _split(
    rows: Sequence[Row], have: Mapping[tuple[str, int], Row]
) -> tuple[list[Row], int | None]:
    """The rows that the state has too, and the step of the first that it has not."""
    kept: list[Row] = []
    dropped: list[int] = []
    seen: set[tuple[str, int]] = set()
    for row in rows:
        key = row["kind"], row["step"]
        mine = have.get(key)
        if mine is not None and same_loss(row, mine["loss"]) and key not in seen:
            kept.append(row)
        else:
            dropped.append(row["step"])
        seen.add(key)
    return kept, min(dropped, default=None)


def _evaluation(found: StepEvaluation) -> Row:
    values = {name: getattr(found, name) for name in EVALUATION_FIGURES}
    return {"kind": "evaluation", "step": found.step, **values}


def in_order(rows: Sequence[Row]) -> Iterator[Row]:
    """Rows by steps, an evaluation after its step."""
    yield from sorted(rows, key=lambda row: (row["step"], row["kind"] == "evaluation"))
