"""A report as TensorBoard's event files."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from zoexport.watching.reports import (
    EVALUATION_FIGURES,
    STEP_FIGURES,
    Row,
    another_run,
    in_order,
    same_run,
)

_RUN = "run"
_GROUPS = {"step": ("train", STEP_FIGURES), "evaluation": ("held_out", EVALUATION_FIGURES)}


class Events:
    """A folder; each start of a run adds a file to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._had_run = False

    def known(self, run: Mapping[str, Any]) -> list[Row]:
        """See :class:`zoexport.watching.reports.Destination`."""
        if not any(self._folder.glob("*tfevents*")):
            return []
        events = EventAccumulator(str(self._folder), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        try:
            text = events.Tensors(_RUN)[-1].tensor_proto.string_val[0].decode()
            head = json.loads(text.strip().removeprefix("```").removesuffix("```"))
        except (KeyError, IndexError, ValueError):
            raise another_run(self._folder, "event files of another program") from None
        if not same_run(head, run):
            raise another_run(self._folder, "the report of another run")
        self._had_run = True
        rows: dict[tuple[str, int], Row] = {}
        for kind, (group, figures) in _GROUPS.items():
            for figure in figures:
                tag = f"{group}/{figure}"
                if tag not in events.Tags()["scalars"]:
                    continue
                for one in events.Scalars(tag):
                    empty = {"kind": kind, "step": one.step, **dict.fromkeys(figures)}
                    rows.setdefault((kind, one.step), empty)[figure] = one.value
        return list(rows.values())

    def go_on(
        self, run: Mapping[str, Any], kept: list[Row], missing: list[Row], cut: int | None
    ) -> None:
        """See :class:`zoexport.watching.reports.Destination`."""
        self._writer = EventFileWriter(str(self._folder), filename_suffix=f".{time.time_ns()}")
        if not self._had_run:
            text = "```\n" + json.dumps(run, indent=1) + "\n```"
            self._add(0, summary=text_pb(_RUN, text))
        rows = missing
        if cut is not None:
            # Readers drop what they have from this step on.
            self._add(cut, session_log=SessionLog(status=SessionLog.START))
            rows = [*missing, *(row for row in kept if row["step"] >= cut)]
            if cut == 0:
                self._add(0, summary=text_pb(_RUN, "```\n" + json.dumps(run, indent=1) + "\n```"))
        for row in in_order(rows):
            self.write(row)

    def write(self, row: Row) -> None:
        """See :class:`zoexport.watching.reports.Destination`."""
        group, figures = _GROUPS[row["kind"]]
        values = [
            Summary.Value(tag=f"{group}/{figure}", simple_value=row[figure])
            for figure in figures
            if row[figure] is not None
        ]
        self._add(row["step"], summary=Summary(value=values))

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(Event(step=step, wall_time=time.time(), **content))

    def close(self) -> None:
        """See :class:`zoexport.watching.reports.Destination`."""
        self._writer.close()
