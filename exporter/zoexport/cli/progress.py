"""Progress on standard error: live on a terminal, plain lines elsewhere, silent for ``--json``."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from zoexport.session import StepEvaluation
    from zoexport.session import StepProgress as Step

#: Seconds between plain lines, so that a log of a long run stays readable.
LINE_INTERVAL = 1.0


class Phases:
    """Names of phases, each with the share that is done where it is known.

    A ``zoexport.core.types.Progress`` that is also a context manager.
    """

    def __init__(self, title: str, *, as_json: bool) -> None:
        self._title = title
        self._live = sys.stderr.isatty()
        self._silent = as_json and not self._live
        self._bar: Bar | None = None
        self._phase = ""

    def __enter__(self) -> Phases:
        if self._live:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
            from rich.progress import TimeElapsedColumn as Elapsed

            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("[bold]{task.fields[title]}[/bold] {task.description}"),
                BarColumn(bar_width=24),
                Elapsed(),
                console=Console(file=sys.stderr),
                transient=True,
                redirect_stdout=False,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=None, title=self._title)
        return self

    def __call__(self, phase: str, done: float | None) -> None:
        """Report that ``phase`` runs, with the share of it that is done, 0 to 1."""
        if self._bar is not None:
            total = None if done is None else 1.0
            self._bar.update(self._task, description=phase, total=total, completed=done or 0.0)
        elif not self._silent and phase != self._phase:
            print(f"{self._title}: {phase}", file=sys.stderr, flush=True)
        self._phase = phase

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


class Steps:
    """The steps of a training run: step, loss, steps a second, memory, time left."""

    def __init__(self, *, as_json: bool) -> None:
        self._live = sys.stderr.isatty()
        self._silent = as_json and not self._live
        self._bar: Bar | None = None
        self._phase = ""
        self._first: tuple[int, float] | None = None
        self._last_line = 0.0

    def __enter__(self) -> Steps:
        if self._live:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("[bold]train[/bold]"),
                MofNCompleteColumn(),
                BarColumn(bar_width=None),
                TextColumn("{task.description}"),
                console=Console(file=sys.stderr),
                redirect_stdout=False,
            )
            self._bar.start()
            self._task = self._bar.add_task("starting", total=None)
        return self

    def phase(self, phase: str, done: float | None) -> None:
        """Report what happens between steps, such as tokenization."""
        if self._bar is not None:
            shown = phase if done is None else f"{phase} {done:.0%}"
            self._bar.update(self._task, description=shown)
        elif not self._silent and phase != self._phase:
            print(f"train: {phase}", file=sys.stderr, flush=True)
        self._phase = phase

    def __call__(self, step: Step) -> None:
        """Report a step that has just ended."""
        now = time.monotonic()
        if self._first is None:
            self._first = (step.step - 1, now - step.seconds)
        rate = (step.step - self._first[0]) / max(now - self._first[1], 1e-9)
        text = self._describe(step, rate)
        if self._bar is not None:
            self._bar.update(self._task, completed=step.step, total=step.total, description=text)
        elif not self._silent and (
            step.step == step.total or now - self._last_line >= LINE_INTERVAL
        ):
            self._last_line = now
            print(f"train: step {step.step}/{step.total}  {text}", file=sys.stderr, flush=True)

    def evaluated(self, found: StepEvaluation) -> None:
        """Report an evaluation of held-out examples."""
        best = ", the best so far" if found.best else ""
        text = f"train: step {found.step}  held-out loss {found.loss:.4f}{best}"
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        elif not self._silent:
            print(text, file=sys.stderr, flush=True)

    @staticmethod
    def _describe(step: Step, rate: float) -> str:
        left = round((step.total - step.step) / rate)
        clock = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
        memory = f"{step.anonymous_bytes / 1e6:.0f} MB" if step.anonymous_bytes else "- MB"
        return f"loss {step.loss:.4f}  {rate:.2f} steps/s  {memory}  {clock} left"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
