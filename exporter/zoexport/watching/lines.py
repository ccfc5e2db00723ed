"""A report as JSON Lines: the run, then a line a step and a line an evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from zoexport.core.errors import ConfigError
from zoexport.core.files import atomic_file
from zoexport.watching.reports import (
    EVALUATION_FIGURES,
    STEP_FIGURES,
    Row,
    another_run,
    in_order,
    same_run,
)


class Lines:
    """A file; a line is whole in it before the next step begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def known(self, run: Mapping[str, Any]) -> list[Row]:
        """See :class:`zoexport.watching.reports.Destination`."""
        if not self.path.exists():
            return []
        found = read(self.path)
        if found is None:
            raise another_run(self.path, "a file that is no report")
        head, rows = found
        if not same_run(head, run):
            raise another_run(self.path, "the report of another run")
        return rows

    def go_on(
        self, run: Mapping[str, Any], kept: list[Row], missing: list[Row], cut: int | None
    ) -> None:
        """See :class:`zoexport.watching.reports.Destination`."""
        with atomic_file(self.path) as temporary, temporary.open("w", encoding="utf-8") as file:
            for row in ({"kind": "run", **run}, *in_order([*kept, *missing])):
                file.write(_line(row))
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, row: Row) -> None:
        """See :class:`zoexport.watching.reports.Destination`."""
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
        """See :class:`zoexport.watching.reports.Destination`."""
        if self._file is not None:
            self._file.close()


def read(path: Path) -> tuple[dict[str, Any], list[Row]] | None:
    """The run and the rows of a report up to the first line that is none; None of a file that is no report."""
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
