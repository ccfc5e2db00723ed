"""A process that runs cases, so that one that ends it is a failure with a name and not the end of the sweep."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from tests.sweep.cases import Case
from tests.sweep.execute import FAILED, Outcome, execute
from zoexport.core.children import die_with_parent

_CASES = 150
"""That a process runs before the next one takes its place: what libraries keep of each adds up."""


class Worker:
    """Runs cases one after another in another process, and starts the next process when one ends.

    Args:
        limit: seconds after which a case counts as one that hangs.
    """

    def __init__(self, limit: float = 900.0) -> None:
        self._limit = limit
        self._process: subprocess.Popen[str] | None = None
        self._ran = 0
        # Not the child's own: a process that crashes leaves its files behind.
        self._scratch = tempfile.TemporaryDirectory(prefix="zoexport-sweep-")

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        self._scratch.cleanup()

    def run(self, case: Case) -> Outcome:
        """What comes of the case; the process's end and its silence are failures."""
        if self._process is None or self._ran >= _CASES:
            self._stop()
            self._process = self._start()
        self._ran += 1
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(case.json() + "\n")
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], self._limit)
        line = process.stdout.readline() if ready else ""
        if line:
            return Outcome(**json.loads(line))
        if ready:
            process.wait()
        self._stop()
        if not ready:
            return Outcome(FAILED, f"no answer within {self._limit:g} s", "hangs")
        name = signal.Signals(-process.returncode).name if process.returncode < 0 else "exit"
        return Outcome(FAILED, f"its process ended with {process.returncode}", f"crash: {name}")

    def _start(self) -> subprocess.Popen[str]:
        self._ran = 0
        return subprocess.Popen(
            [sys.executable, "-m", "tests.sweep.worker"],
            cwd=Path(__file__).parents[2],
            env={
                "OMP_NUM_THREADS": "1",
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "TMPDIR": self._scratch.name,
                "ZOEXPORT_SHADERS": str(Path(self._scratch.name) / "packed"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def main() -> None:
    """Answer each line of standard input, a case, with a line of standard output, its outcome."""
    die_with_parent()
    # Exporting makes millions of objects, over a million that stay: a tenth of the time went to looking for cycles.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    # Libraries print: what they say goes to standard error, and the answers alone to the pipe.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        outcome = execute(Case.from_json(line))
        answers.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
