"""``--report-to``: log the steps and evaluations of a run.

The JSON Lines file stays consistent with its state. When a run resumes, rows that the state lacks
are removed and missing rows are added from the state, which stores the loss and the rate of a step
but not its seconds and memory. TensorBoard and trackio receive each row during training.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from zoexport.core.errors import ConfigError
from zoexport.core.files import atomic_file
from zoexport.session import Session, StepEvaluation, StepProgress

KINDS = ("tensorboard", "trackio", "jsonl")
Row = dict[str, Any]
"""``kind`` (``step`` or ``evaluation``), ``step``, and figures; None where one is not known."""

STEP_FIGURES = ("loss", "learning_rate", "seconds", "anonymous_mb")
EVALUATION_FIGURES = ("loss", "accuracy", "token_accuracy", "margin")
_EXACT = 1e-6
"""Relative: losses in the state are float32."""


class Destination(Protocol):
    """Destination of a report."""

    def begin(self, run: Mapping[str, Any], have: Mapping[tuple[str, int], Row]) -> None:
        """Open the destination for a run.

        Args:
            run: bundle, method, target, seed, settings. have: the state's rows by (kind, step).

        Raises:
            ConfigError: it contains another run, or something other than a report.
        """

    def write(self, row: Row) -> None:
        """Add a row."""

    def close(self) -> None:
        """Write pending rows and close."""


class Reports:
    """Reports of one run; :meth:`begin` opens them."""

    def __init__(self, destinations: Sequence[Destination]) -> None:
        self._destinations = destinations
        self._open: list[Destination] = []

    def begin(self, session: Session, settings: Mapping[str, Any]) -> None:
        """Reconcile each report with the steps of the session.

        Args:
            session: a configured session with an attached state.
            settings: settings of the bundle; those of the run override them.

        Raises:
            ConfigError: a destination contains something else, or cannot be written.
        """
        if not self._destinations:
            return
        info = session.info
        run = {
            "bundle_id": info.bundle_id,
            "method": info.method,
            "target": info.target,
            "seed": info.seed,
            "settings": {**settings, **session.settings},
        }
        have = _rows_of(session)
        for destination in self._destinations:
            destination.begin(run, have)
            self._open.append(destination)

    def step(self, now: StepProgress) -> None:
        """Add a step."""
        memory = round(now.anonymous_bytes / 1e6, 1) if now.anonymous_bytes else None
        figures = (now.loss, now.learning_rate, round(now.seconds, 6), memory)
        self._write(
            {"kind": "step", "step": now.step, **dict(zip(STEP_FIGURES, figures, strict=True))}
        )

    def evaluated(self, found: StepEvaluation) -> None:
        """Add an evaluation."""
        self._write(_evaluation(found))

    def close(self) -> None:
        """Close all destinations."""
        while self._open:
            self._open.pop().close()

    def _write(self, row: Row) -> None:
        for destination in self._open:
            destination.write(row)


def reports(report_to: Sequence[str], state: Path) -> Reports:
    """Return the destinations that ``--report-to`` names.

    Args:
        report_to: ``KIND`` or ``KIND:PLACE``: a jsonl file, tensorboard folder or trackio project.
            Default places: ``STATE.report.jsonl``, ``STATE.tensorboard``, project ``zoexport``.
        state: folder of the state.

    Raises:
        ConfigError: unknown kind, or its library is not installed.
    """
    return Reports([_destination(text, state) for text in dict.fromkeys(report_to)])


def default_file(state: Path) -> Path:
    """Return the default report file: next to the state folder, which the session owns."""
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
            return Lines(Path(place) if place else default_file(state))
        if kind == "tensorboard":
            return _TensorBoard(
                Path(place) if place else state.with_name(state.name + ".tensorboard")
            )
        return _Trackio(place or "zoexport", state.name)
    except ImportError as error:
        raise ConfigError(
            f"--report-to {text}",
            found=f"no {error.name or kind}",
            expected="the library that writes it",
            fix="Install it: pip install 'zoexport[report]'.",
        ) from error


class Lines:
    """A JSON Lines file; each line is complete before the next step begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def begin(self, run: Mapping[str, Any], have: Mapping[tuple[str, int], Row]) -> None:
        """See :class:`Destination`."""
        known = self._known(run) if self.path.exists() else []
        rows = {
            (row["kind"], row["step"]): row
            for row in reversed(known)  # the first of a step counts
            if (mine := have.get((row["kind"], row["step"]))) and same_loss(row, mine["loss"])
        }
        with atomic_file(self.path) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.write(_line({"kind": "run", **run}))
            file.writelines(_line(rows.get(key, row)) for key, row in have.items())
        self._file = self.path.open("a", encoding="utf-8")

    def _known(self, run: Mapping[str, Any]) -> list[Row]:
        found = read(self.path)
        if found is not None and same_run(found[0], run):
            return found[1]
        raise ConfigError(
            f"report {self.path}",
            found="a file that is no report" if found is None else "the report of another run",
            expected="a report of this bundle and seed, or none",
            fix="Name another place after the colon of --report-to, or remove that report.",
        )

    def write(self, row: Row) -> None:
        """See :class:`Destination`."""
        assert self._file is not None
        try:
            self._file.write(_line(row))
            self._file.flush()
        except OSError as error:
            raise ConfigError(
                f"report {self.path}",
                found=error.strerror or str(error),
                expected="room for a line",
                fix="Free space there; the state is saved, and the report goes on with it.",
            ) from error

    def close(self) -> None:
        """See :class:`Destination`."""
        if self._file is not None:
            self._file.close()


class _TensorBoard:
    """A folder of event files; each start of a run adds a file to it."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder, self._file_writer = folder, EventFileWriter
        self._writer: Any = None

    def begin(self, run: Mapping[str, Any], have: Mapping[tuple[str, int], Row]) -> None:
        """See :class:`Destination`."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._writer = self._file_writer(str(self._folder), filename_suffix=f".{time.time_ns()}")
        # Makes readers drop what they have after the state's last step.
        last = max((step for _, step in have), default=-1)
        self._add(last + 1, session_log=SessionLog(status=SessionLog.START))
        self._add(0, summary=text_pb("run", "```\n" + json.dumps(run, indent=1) + "\n```"))

    def write(self, row: Row) -> None:
        """See :class:`Destination`."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in _figures(row).items()
        ]
        self._add(row["step"], summary=Summary(value=values))

    def _add(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(step=step, wall_time=time.time(), **content))

    def close(self) -> None:
        """See :class:`Destination`."""
        self._writer.close()


class _Trackio:
    """A run of a project in trackio's local store, under the name of the state's folder."""

    def __init__(self, project: str, name: str) -> None:
        import trackio

        self._trackio, self._project, self._name = trackio, project, name
        self._run: Any = None

    def begin(self, run: Mapping[str, Any], have: Mapping[tuple[str, int], Row]) -> None:
        """See :class:`Destination`."""
        with contextlib.redirect_stdout(io.StringIO()):  # it announces itself
            self._run = self._trackio.init(
                project=self._project,
                name=self._name,
                config=dict(run),
                resume="allow" if have else "never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def write(self, row: Row) -> None:
        """See :class:`Destination`."""
        self._run.log(_figures(row), step=row["step"])

    def close(self) -> None:
        """See :class:`Destination`."""
        with contextlib.redirect_stdout(io.StringIO()):
            self._trackio.finish()


def _figures(row: Row) -> dict[str, float]:
    """Return the known values of a row by their names in TensorBoard and trackio."""
    group = "train" if row["kind"] == "step" else "held_out"
    return {
        f"{group}/{name}": value
        for name, value in row.items()
        if name not in ("kind", "step") and value is not None
    }


def same_run(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two report headers belong to the same run."""
    return all(first.get(key) == second.get(key) for key in ("bundle_id", "seed"))


def same_loss(row: Row, loss: float) -> bool:
    """Return whether a row, a step or an evaluation, has this loss."""
    found = row["loss"]
    return found is not None and math.isclose(found, loss, rel_tol=_EXACT, abs_tol=1e-9)


def _rows_of(session: Session) -> dict[tuple[str, int], Row]:
    """Return the rows of the state in order: an evaluation follows its step."""
    found: list[Row] = [_evaluation(one) for one in session.evaluations]
    for index in range(session.info.steps):
        record = session.record(index)
        found.append(
            {
                "kind": "step",
                "step": index + 1,
                "loss": record.loss,
                "learning_rate": record.learning_rate,
                "seconds": None,
                "anonymous_mb": None,
            }
        )
    found.sort(key=lambda row: (row["step"], row["kind"] == "evaluation"))
    return {(row["kind"], row["step"]): row for row in found}


def _evaluation(found: StepEvaluation) -> Row:
    values = {name: getattr(found, name) for name in EVALUATION_FIGURES}
    return {"kind": "evaluation", "step": found.step, **values}


def read(path: Path) -> tuple[dict[str, Any], list[Row]] | None:
    """Read the run and the rows up to the first invalid line; None if the file is not a report."""
    head: dict[str, Any] | None = None
    rows: list[Row] = []
    try:
        for text in path.read_bytes().splitlines():
            row = json.loads(text)
            if not isinstance(row, dict):
                break
            if head is None:
                if row.get("kind") != "run" or not isinstance(row.get("bundle_id"), str):
                    return None
                head = row
            elif (good := _row(row)) is not None:
                rows.append(good)
            else:
                break
    except (OSError, ValueError, RecursionError):
        pass  # an abrupt end leaves part of a line
    return None if head is None else (head, rows)


def _row(row: Mapping[str, Any]) -> Row | None:
    figures = {"step": STEP_FIGURES, "evaluation": EVALUATION_FIGURES}.get(str(row.get("kind")))
    if figures is None or type(row.get("step")) is not int or row["step"] < 0:
        return None
    found: Row = {"kind": row["kind"], "step": row["step"]}
    for name in figures:
        value = row.get(name)
        if value is not None and (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
        ):
            return None
        found[name] = value
    return found


def _line(row: Mapping[str, Any]) -> str:
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }
    return json.dumps(finite) + "\n"
