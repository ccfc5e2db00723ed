"""A report as a run of trackio, in its local store."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import trackio
from trackio.sqlite_storage import SQLiteStorage

from zoexport.watching.reports import (
    EVALUATION_FIGURES,
    STEP_FIGURES,
    Row,
    another_run,
    in_order,
    same_run,
)

_GROUPS = {"step": ("train", STEP_FIGURES), "evaluation": ("held_out", EVALUATION_FIGURES)}


class Tracked:
    """A run of a project, under the name of the state's folder."""

    def __init__(self, project: str, name: str) -> None:
        self._project = project
        self._name = name
        self._run: Any = None

    def _there(self) -> Any:
        try:
            runs = list(trackio.Api().runs(self._project))
        except ValueError:  # no such project yet
            return None
        return next((run for run in runs if run.name == self._name), None)

    def known(self, run: Mapping[str, Any]) -> list[Row]:
        """See :class:`zoexport.watching.reports.Destination`."""
        there = self._there()
        if there is None:
            return []
        if not same_run(there.config or {}, run):
            raise another_run(
                f"{self._project}/{self._name} of trackio", "another run of this name"
            )
        rows = []
        for log in SQLiteStorage.get_logs(self._project, self._name, run_id=there.id):
            for kind, (group, figures) in _GROUPS.items():
                found = {figure: log.get(f"{group}/{figure}") for figure in figures}
                if found["loss"] is not None:
                    rows.append({"kind": kind, "step": log["step"], **found})
        return rows

    def go_on(
        self, run: Mapping[str, Any], kept: list[Row], missing: list[Row], cut: int | None
    ) -> None:
        """See :class:`zoexport.watching.reports.Destination`."""
        rows = missing
        if cut is not None:
            self._there().delete()
            rows = [*kept, *missing]
        with contextlib.redirect_stdout(io.StringIO()):  # it announces itself
            self._run = trackio.init(
                project=self._project,
                name=self._name,
                config=dict(run),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        for row in in_order(rows):
            self.write(row)

    def write(self, row: Row) -> None:
        """See :class:`zoexport.watching.reports.Destination`."""
        group, figures = _GROUPS[row["kind"]]
        found = {f"{group}/{name}": row[name] for name in figures if row[name] is not None}
        self._run.log(found, step=row["step"])

    def close(self) -> None:
        """See :class:`zoexport.watching.reports.Destination`."""
        with contextlib.redirect_stdout(io.StringIO()):
            trackio.finish()
