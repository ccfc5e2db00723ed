"""Sweeps random cases: ``python -m tests.sweep.run --target host --seconds 600``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import TextIO

from tests.sweep.cases import METHODS, TARGETS, Case
from tests.sweep.execute import FAILED, Outcome, execute
from tests.sweep.sweep import Sweep, Swept, as_dict
from tests.sweep.worker import Worker


def main(arguments: list[str] | None = None) -> int:
    """Sweep the targets, or replay one case; 1 if a case failed."""
    given = _parse(arguments)
    if given.replay is not None:
        case = Case.from_json(given.replay)
        outcome = execute(case)
        print(case)
        print(json.dumps(dataclasses.asdict(outcome), indent=2))
        return int(outcome.status == FAILED)
    targets = given.target or list(TARGETS)
    seed = time.time_ns() // 1_000_000 % 1_000_000 if given.seed is None else given.seed
    results = []
    for target in targets:
        print(f"{target}: seed {seed}", file=sys.stderr)
        with Worker() as worker:
            sweep = Sweep(
                target,
                worker.run,
                start=seed,
                method=given.method,
                progress=_Progress(),
                shrink=given.shrink,
            )
            seconds = None if given.seconds is None else given.seconds / len(targets)
            results.append(sweep.run(count=given.cases, seconds=seconds))
        _say_failures(results[-1], sys.stderr if given.json else sys.stdout)
    if given.json:
        print(json.dumps([as_dict(swept) for swept in results]))
    else:
        for swept in results:
            print(swept.summary())
    return int(any(swept.failed for swept in results))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep.run", description=__doc__)
    parser.add_argument("--target", action="append", choices=TARGETS, help="all where none is")
    parser.add_argument("--method", choices=METHODS, help="all where none is")
    parser.add_argument("--seconds", type=float, help="all targets together")
    parser.add_argument("--cases", type=int, help="of each target")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds for one failure")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--replay", metavar="JSON", help="one case, in this process")
    given = parser.parse_args(arguments)
    if given.replay is None and given.seconds is None and given.cases is None:
        parser.error("give --seconds, --cases or --replay")
    return given


class _Progress:
    """A line for each case that failed, and one every half minute."""

    def __init__(self) -> None:
        self._begin = self._said = time.monotonic()

    def __call__(self, swept: Swept, case: Case, outcome: Outcome) -> None:
        """Say it on standard error."""
        if outcome.status == FAILED:
            print(f"FAILED {outcome.kind}: {case.json()}", file=sys.stderr)
        elif time.monotonic() - self._said < 30:
            return
        self._said = time.monotonic()
        print(
            f"{swept.target}: {swept.passed.total()} passed, {swept.refused.total()} refused, "
            f"{swept.failed} failed, {time.monotonic() - self._begin:.0f} s",
            file=sys.stderr,
            flush=True,
        )


def _say_failures(swept: Swept, stream: TextIO) -> None:
    for failure in swept.failures:
        print(
            f"\n{failure.outcome.kind}\n  {failure.smallest!r}\n  --replay '{failure.smallest.json()}'",
            file=stream,
        )
        print("  " + failure.outcome.detail.strip().replace("\n", "\n  "), file=stream)


if __name__ == "__main__":
    sys.exit(main())
