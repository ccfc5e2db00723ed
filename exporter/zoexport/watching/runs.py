"""What a state, the report beside it and a bundle say of a run; what nobody recorded is None."""

from __future__ import annotations

import dataclasses
import statistics
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoexport.core.errors import StateError
from zoexport.core.files import open_within
from zoexport.describe import describe_state
from zoexport.watching.reports import default_file, read, same_loss, same_run

MOST_POINTS = 400
"""Of a curve, as of jobs (docs/jobs.md)."""
_HEADER = 64


@dataclasses.dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        state: its folder. found: what it says of itself (docs/session.md).
        losses: of each step.
        seconds, anonymous_mb: by step, of those of which a report beside the state has them.
        bytes: of the state's files.
    """

    state: Path
    found: dict[str, Any]
    losses: list[float]
    seconds: dict[int, float]
    anonymous_mb: dict[int, float]
    bytes: int

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Of held-out examples, by steps."""
        validation = self.found["validation"]
        return [] if validation is None else validation["evaluations"]

    @property
    def best(self) -> dict[str, Any] | None:
        """The evaluation with the lowest loss."""
        validation = self.found["validation"]
        step = None if validation is None else validation["best_step"]
        return next((one for one in self.evaluations if one["step"] == step), None)

    @property
    def step_seconds(self) -> float | None:
        """The median of the steps whose time is known."""
        return statistics.median(self.seconds.values()) if self.seconds else None

    @property
    def peak_anonymous_mb(self) -> float | None:
        """The most after a step whose memory is known."""
        return max(self.anonymous_mb.values(), default=None)


def read_run(state: Path, bundle: Path | None = None) -> Run:
    """Read a run.

    Args:
        state: its folder; only read. A report beside it is read where it is of this run.
        bundle: whose state it must be.

    Raises:
        StateError: there is none, it is of another bundle, or it is damaged beyond its log.
    """
    found = describe_state(state, bundle)
    losses = _losses(state, found["steps"])
    seconds: dict[int, float] = {}
    memory: dict[int, float] = {}
    report = read(default_file(state)) if default_file(state).is_file() else None
    if report is not None and same_run(report[0], found):
        for row in report[1]:
            if row["kind"] != "step" or not 0 < row["step"] <= len(losses):
                continue
            if not same_loss(row, losses[row["step"] - 1]):
                continue  # of a step that the run has taken otherwise since
            for kept, name in ((seconds, "seconds"), (memory, "anonymous_mb")):
                if row[name] is not None:
                    kept[row["step"]] = float(row[name])
    size = sum(path.stat().st_size for path in state.iterdir() if path.is_file())
    return Run(state, found, losses, seconds, memory, size)


def _losses(state: Path, steps: int) -> list[float]:
    """The losses in the log, of whose records the session has checked so many."""
    if steps == 0:
        return []
    try:
        with open_within(state, "trajectory.log") as file:
            content = file.read()
        (queries,) = struct.unpack_from("<I", content, 48)
        size = 20 + 4 * queries
        return [struct.unpack_from("<f", content, _HEADER + n * size + 12)[0] for n in range(steps)]
    except (OSError, struct.error) as error:
        raise StateError(
            str(state / "trajectory.log"),
            found=str(error),
            expected=f"{steps} records",
            fix="Make the report again; the run may have changed meanwhile.",
        ) from error


def thinned(values: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points of a curve, at most 400: where there are more, two neighbours become one, their mean."""
    points = list(values)
    while len(points) > MOST_POINTS:
        pairs = [points[at : at + 2] for at in range(0, len(points), 2)]
        points = [
            (sum(x for x, _ in pair) / len(pair), sum(y for _, y in pair) / len(pair))
            for pair in pairs
        ]
    return points
