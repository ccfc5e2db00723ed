"""The property that every case passes or is refused: tried over and over, each failure shrunk, none the end."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis.configuration import set_hypothesis_home_dir

from tests.sweep.cases import Case, cases
from tests.sweep.execute import FAILED, REFUSED, Outcome

# What hypothesis writes although there is no database goes where it is ignored.
set_hypothesis_home_dir(Path(__file__).parents[2] / "build" / "hypothesis")

_ROUND = 25
"""Cases that are drawn from one seed."""
_APART = 1_000_003
"""Between the seeds of two rounds, so that sweeps from neighbouring seeds have no round in common."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """One kind of failure.

    Attributes:
        smallest: the smallest case that still failed like this when the time for shrinking was over.
        found: the case that it was shrunk from.
        outcome: of the smallest.
    """

    smallest: Case
    found: Case
    outcome: Outcome


@dataclasses.dataclass
class Swept:
    """What a sweep of one target tried.

    Attributes:
        seed: that it began with.
        passed: how many cases did, by method.
        refused: reasons, and how many cases. failed: how many, all in all.
        again: cases that failed like a case that had been shrunk already, with what came of them.
        shrinking: cases that were tried while shrinking, which the other numbers leave out.
    """

    target: str
    seed: int
    passed: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    refused: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    failed: int = 0
    failures: list[Failure] = dataclasses.field(default_factory=list)
    again: list[tuple[Case, Outcome]] = dataclasses.field(default_factory=list)
    shrinking: int = 0
    seconds: float = 0.0

    @property
    def tried(self) -> int:
        """Cases that were compiled and compared."""
        return self.passed.total() + self.failed

    def summary(self) -> str:
        """One line."""
        methods = ", ".join(f"{name} {count}" for name, count in sorted(self.passed.items()))
        return (
            f"{self.target}: seed {self.seed}, {self.tried} cases, {self.passed.total()} passed ({methods}), "
            f"{self.failed} failed in {len(self.failures)} ways, {self.refused.total()} refused, "
            f"{self.seconds:.0f} s"
        )


class _Failed(Exception):
    """Raised so that hypothesis knows that a case failed."""


class Sweep:
    """Draws cases of one target and tries each.

    Args:
        target, method: see :func:`~tests.sweep.cases.cases`.
        execute: what tries a case.
        start: the seed. progress: called with what came of each case.
        shrink: seconds for the shrinking of one failure.
    """

    def __init__(
        self,
        target: str,
        execute: Callable[[Case], Outcome],
        *,
        start: int,
        method: str | None = None,
        progress: Callable[[Swept, Case, Outcome], None] = lambda *_: None,
        shrink: float = 60.0,
    ) -> None:
        self.swept = Swept(target, start)
        self._execute = execute
        self._progress = progress
        self._shrink = shrink
        self._strategy = cases(target, method)
        self._outcomes: dict[Case, Outcome] = {}
        self._seen: set[tuple[str, str]] = set()
        self._failing: list[Case] = []
        """The cases of the failure that is being shrunk: the first, and each that failed in the same way."""
        self._shrunk_by = 0.0

    def run(self, *, count: int | None = None, seconds: float | None = None) -> Swept:
        """Try ``count`` cases, refused ones not counted, or for so many ``seconds``; whatever ends first."""
        begin = time.monotonic()

        def over() -> bool:
            return (count is not None and self.swept.tried >= count) or (
                seconds is not None and time.monotonic() - begin >= seconds
            )

        number = 0
        while not over():
            self._round(self.swept.seed + number * _APART, over)
            number += 1
        self.swept.seconds = time.monotonic() - begin
        return self.swept

    def _round(self, number: int, over: Callable[[], bool]) -> None:
        self._failing = []

        @seed(number)
        @settings(
            max_examples=_ROUND,
            database=None,
            deadline=None,
            derandomize=False,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        @given(self._strategy)
        def every_case_passes(case: Case) -> None:
            if case not in self._outcomes and not self._failing and over():
                return
            self._try(case)

        try:
            every_case_passes()
        except _Failed:
            smallest = self._failing[-1]
            outcome = self._outcomes[smallest]
            self._seen.add((smallest.method, outcome.kind))
            self.swept.failures.append(Failure(smallest, self._failing[0], outcome))

    def _try(self, case: Case) -> None:
        shrinking = bool(self._failing)
        if case not in self._outcomes:
            if shrinking and time.monotonic() > self._shrunk_by:
                return
            outcome = self._outcomes[case] = self._execute(case)
            self._count(case, outcome, shrinking=shrinking)
        outcome = self._outcomes[case]
        if outcome.status == REFUSED:
            reject()
        if outcome.status != FAILED:
            return
        if shrinking:
            first = self._failing[0]
            # Another failure is not a smaller form of this one.
            if (case.method, outcome.kind) != (first.method, self._outcomes[first].kind):
                return
        elif (case.method, outcome.kind) in self._seen:
            return
        else:
            self._shrunk_by = time.monotonic() + self._shrink
        self._failing.append(case)
        raise _Failed

    def _count(self, case: Case, outcome: Outcome, *, shrinking: bool) -> None:
        if shrinking:
            self.swept.shrinking += 1
            return
        if outcome.status == REFUSED:
            self.swept.refused[f"{case.method}: {outcome.kind}"] += 1
        elif outcome.status == FAILED:
            self.swept.failed += 1
            if (case.method, outcome.kind) in self._seen:
                self.swept.again.append((case, outcome))
        else:
            self.swept.passed[case.method] += 1
        self._progress(self.swept, case, outcome)


def as_dict(swept: Swept) -> dict[str, Any]:
    """For ``--json``: the numbers, and each failing case as ``--replay`` takes it."""
    return {
        "target": swept.target,
        "seed": swept.seed,
        "cases": swept.tried,
        "passed": dict(swept.passed),
        "refused": dict(swept.refused),
        "failed": swept.failed,
        "shrinking": swept.shrinking,
        "seconds": round(swept.seconds, 1),
        "failures": [
            {
                "kind": failure.outcome.kind,
                "smallest": failure.smallest.changes(),
                "found": failure.found.changes(),
                "detail": failure.outcome.detail,
            }
            for failure in swept.failures
        ],
        "again": [
            {"kind": outcome.kind, "case": case.changes(), "detail": outcome.detail}
            for case, outcome in swept.again
        ],
    }
