"""Progress on standard error: a bar on a terminal and in a notebook, lines elsewhere, silent for ``--json``."""

from __future__ import annotations

import builtins
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

from zoexport.core.progress import Notice, Progress, silent

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from zoexport.session import StepEvaluation
    from zoexport.session import StepProgress as Step

_SPLIT = (
    ("loading the model", 0.0),
    ("capturing the model", 0.32),
    ("bind_rows", 0.41),
    ("check_stages", 0.43),
    ("differentiate", 0.45),
    ("score_labels", 0.55),
    ("lowering programs", 0.56),
    ("writing the program file", 0.62),
    ("capturing the model to generate", 0.63),
    ("cache_attention", 0.69),
    ("lowering programs", 0.7),
    ("writing the program file", 0.71),
    ("writing the weights", 0.72),
    ("hashing the files", 0.94),
)
_WHOLE = (
    ("loading the model", 0.0),
    ("capturing the model", 0.05),
    ("bind_rows", 0.11),
    ("check_lengths", 0.13),
)
#: Share of the time that is over when a phase of a compile begins: SmolLM2-135M by backpropagation on the CPU. The
#: phases after check_lengths, of whole-model programs, depend on the target: their time left is not shown.
COMPILE = (_SPLIT, _WHOLE)

Shown: TypeAlias = "bool | Progress"
"""``progress`` of a function: True shows a bar, a callback receives the phases."""

#: Seconds between plain lines, so that a log of a long run stays readable.
LINE_INTERVAL = 60.0


class TimeLeft:
    """Estimate of the time left of a job whose phases take about the same share of it each time.

    Args:
        ways: phases in their order, each with the share of the time that has passed when it begins;
            several sequences if the job can take several paths. The reported phases show which one
            it takes.
        clock: returns the time in seconds.
    """

    LEAST = 0.15
    """Share below which an estimate is too uncertain to show."""

    def __init__(
        self, ways: Sequence[Sequence[tuple[str, float]]], clock: Callable[[], float]
    ) -> None:
        self._ways = [[*way] for way in ways]
        self._clock = clock
        self._begin = clock()
        self._share = self._since = 0.0
        self._whole: float | None = None

    def at(self, phase: str, done: float | None) -> None:
        """Report that ``phase`` runs, with the share ``done``, None if unknown."""
        ahead = [way for way in self._ways if any(name == phase for name, _ in way)]
        self._ways = ahead or self._ways
        for way in ahead:
            while way[0][0] != phase:
                del way[0]
        if not ahead or len(self._ways) > 1:
            return
        (way,) = ahead
        share, now = way[0][1], self._clock() - self._begin
        if share > self._share:
            self._share, self._since = share, now
        if max(share, done or 0.0) < self.LEAST:
            return
        # Use the pace of the phase itself: weights take a larger share of the time in larger
        # models.
        end = way[1][1] if len(way) > 1 else 1.0
        pace = self._since / share if share else 0.0
        own = (now - self._since) * (1 / done - 1) if done else (end - share) * pace
        if done or now == self._since:
            self._whole = now + own + (1 - end) * pace

    def seconds(self) -> float | None:
        """Return the estimate at the last report minus the time since then, in seconds.

        None if unknown.
        """
        if self._whole is None:
            return None
        return max(self._whole - (self._clock() - self._begin), 0.0)


def _draws() -> bool:
    """Return whether standard error is a terminal, or this is a notebook with ipywidgets, which rich draws bars in."""
    if sys.stderr.isatty():
        return True
    if not hasattr(builtins, "get_ipython") or find_spec("ipywidgets") is None:
        return False
    from rich.console import Console

    return Console().is_jupyter


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class Phases:
    """Names of phases, each with the share that is done, if known.

    A ``zoexport.core.progress.Progress`` that is also a context manager.

    Args:
        title: name of the job. as_json: whether standard output is JSON.
        ways: see :class:`TimeLeft`; if given, a terminal shows the time left.
    """

    def __init__(
        self, title: str, *, as_json: bool = False, ways: Sequence[Sequence[tuple[str, float]]] = ()
    ) -> None:
        self._title = title
        self._left = TimeLeft(ways, time.monotonic)
        self._live = _draws()
        self._silent = as_json and not self._live
        self._bar: Bar | None = None
        self._phase = ""

    def __enter__(self) -> Phases:
        if self._live:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
            from rich.progress import TimeElapsedColumn as Elapsed
            from rich.text import Text

            seconds = self._left.seconds

            class _Left(ProgressColumn):
                def render(self, task: object) -> Text:
                    left = seconds()
                    return Text("" if left is None else f"about {_clock(left)} left")

            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("[bold]{task.fields[title]}[/bold] {task.description}"),
                BarColumn(bar_width=24),
                Elapsed(),
                _Left(),
                console=Console(file=sys.stderr),
                transient=True,
                redirect_stdout=False,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=None, title=self._title)
        return self

    def __call__(self, phase: str, done: float | None) -> None:
        """Report that ``phase`` runs, with the share of it that is done, 0 to 1."""
        if isinstance(phase, Notice) and self._bar is not None:
            self._bar.console.print(f"{self._title}: {phase}", highlight=False)
        elif self._bar is not None:
            total = None if done is None else 1.0
            self._left.at(phase, done)
            self._bar.update(self._task, description=phase, total=total, completed=done or 0.0)
        elif not self._silent and phase != self._phase:
            _say(f"{self._title}: {phase}")
        self._phase = phase

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _clock(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds."""
    left = round(seconds)
    return f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"


class Steps:
    """Progress of a training run: step, loss, steps/s, memory, time left."""

    def __init__(self, title: str, *, as_json: bool = False) -> None:
        self._title = title
        self._live = _draws()
        self._silent = as_json and not self._live
        self._bar: Bar | None = None
        self._phases: set[str] = set()
        self._first: tuple[int, float] | None = None
        self._last_line = 0.0

    def __enter__(self) -> Steps:
        if self._live:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn(f"[bold]{self._title}[/bold]"),
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
        """Report a phase between steps, such as tokenization."""
        if isinstance(phase, Notice) and self._bar is not None:
            self._bar.console.print(f"{self._title}: {phase}", highlight=False)
        elif self._bar is not None:
            shown = phase if done is None else f"{phase} {done:.0%}"
            self._bar.update(self._task, description=shown)
        elif not self._silent and phase not in self._phases:
            self._phases.add(phase)
            _say(f"{self._title}: {phase}")

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
            _say(f"{self._title}: step {step.step}/{step.total}  {text}")

    def evaluated(self, found: StepEvaluation) -> None:
        """Report an evaluation of the validation examples."""
        best = ", the best so far" if found.best else ""
        text = f"{self._title}: step {found.step}  held-out loss {found.loss:.4f}{best}"
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        elif not self._silent:
            _say(text)

    @staticmethod
    def _describe(step: Step, rate: float) -> str:
        clock = _clock((step.total - step.step) / rate)
        memory = f"{step.anonymous_bytes / 1e6:.0f} MB" if step.anonymous_bytes else "- MB"
        return f"loss {step.loss:.4f}  {rate:.2f} steps/s  {memory}  {clock} left"

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


@contextlib.contextmanager
def phases(
    title: str, progress: Shown, ways: Sequence[Sequence[tuple[str, float]]] = ()
) -> Iterator[Progress]:
    """Yield the callback of phases that ``progress`` chooses; for ``title`` and ``ways`` see :class:`Phases`."""
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield silent
    else:
        with Phases(title, ways=ways) as bar:
            yield bar


@contextlib.contextmanager
def stepping(
    title: str,
    progress: bool | Callable[[Step], object],
    phase: Progress | None,
    evaluated: Callable[[StepEvaluation], None] | None,
) -> Iterator[tuple[Callable[[Step], object], Progress, Callable[[StepEvaluation], None]]]:
    """Yield the callbacks of a run: those that are given, else those of a bar if ``progress`` is True."""
    if progress is not True:
        yield progress or silent, phase or silent, evaluated or silent
        return
    with Steps(title) as bar:
        yield bar, phase or bar.phase, evaluated or bar.evaluated
