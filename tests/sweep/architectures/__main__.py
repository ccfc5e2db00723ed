"""Fill in the table of architectures: ``python -m tests.sweep.architectures RESULTS [--page PAGE] [TYPE ...]``.

Each outcome becomes a line of the file RESULTS, and cells that it contains are skipped: stop and start at any time.
One process runs at a time, a new one for each type.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType

from tests.support.architectures import model_types
from tests.sweep.architectures.attempt import COLUMNS, FAILED, SLOW, Outcome, attempts
from tests.sweep.architectures.page import page_of

MOST_SECONDS = 300
"""CPU time for one cell."""


def read(results: Path) -> dict[tuple[str, str], Outcome]:
    """Return the outcomes of a file by type and column."""
    lines = results.read_text("utf-8").splitlines() if results.exists() else []
    found = [Outcome(**json.loads(line)) for line in lines]
    return {(one.model_type, one.column): one for one in found}


def missing(results: Path, model_type: str) -> list[str]:
    """Return the columns that a file lacks for a type."""
    known = read(results)
    return [column for column in COLUMNS if (model_type, column) not in known]


def fill(results: Path, model_type: str) -> None:
    """Try the missing columns of a type in this process; exit if one takes too long."""
    left = missing(results, model_type)

    def write(outcome: Outcome) -> None:
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
        left.remove(outcome.column)
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)

    def stop(number: int, frame: FrameType | None) -> None:
        # The other columns compile the same model.
        for column in tuple(left) if left[0] == COLUMNS[0] else left[:1]:
            write(
                Outcome(
                    model_type, column, SLOW, f"more than {MOST_SECONDS // 60} minutes of CPU time"
                )
            )
        os._exit(0)

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    with tempfile.TemporaryDirectory(prefix="zoexport-architectures-") as folder:
        for outcome in attempts(model_type, Path(folder), tuple(left)):
            write(outcome)
    signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> None:
    """Run the missing cells, then write the page."""
    parser = argparse.ArgumentParser(prog="tests.sweep.architectures", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--page", type=Path, help="Page to write at the end.")
    parser.add_argument("--only", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        return fill(given.results, given.types[0])
    for model_type in given.types or model_types():
        while left := missing(given.results, model_type):
            one = [sys.executable, "-m", "tests.sweep.architectures", given.results]
            code = subprocess.run([*one, model_type, "--only"], check=False).returncode
            if code == -signal.SIGINT:
                return
            if missing(given.results, model_type) == left:
                crash = Outcome(model_type, left[0], FAILED, f"the process ended: {code}")
                with given.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(dataclasses.asdict(crash)) + "\n")
    if given.page:
        given.page.write_text(page_of(read(given.results), model_types()), encoding="utf-8")


if __name__ == "__main__":
    main()
