"""Interactive fine-tuning jobs, as in the apps (runtime_ops/include/zoexport/job.h)."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from zoexport.core.errors import DataError, ZoExportError
from zoexport.core.trust import Trusted
from zoexport.session import abi
from zoexport.session.host import Session
from zoexport.session.types import Engine, EngineCallback, Evaluation, StepEvaluation

Answer = Literal["ask", "continue", "restart"]
Phase = Literal[
    "idle", "preparing", "evaluating", "training", "waiting", "paused", "failed", "done"
]
Keep = Literal["last", "best"]
Reason = Literal["none", "asked", "heat", "battery", "disk", "memory", "background"]


@dataclasses.dataclass(frozen=True)
class Request:
    """Options of a job: what to train.

    Attributes:
        bundle: folder of the bundle. data: examples, as for ``zoexport train --data``.
        steps: total number of steps, including those of an earlier run of the state.
        settings: settings of the run, by key as in ``train --set``.
        held_out: validation examples, evaluated during training. None: ``data``, not during it.
        evaluate: whether to evaluate before the first step and on the weights that are kept.
        eval_every, patience, keep: see :class:`zoexport.session.Validation`.
        engine: engine of all runs of the request; None: the bundle's.
    """

    bundle: Path
    data: Path
    steps: int
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    held_out: Path | None = None
    evaluate: bool = False
    eval_every: int | None = None
    patience: int | None = None
    keep: Keep | None = None
    engine: str | None = None


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Condition of the device; None if unknown.

    Attributes:
        heat: 0 (nominal) to 3 (critical). celsius: of the battery. battery: its charge, 0 to 1.
        charging: whether it has power. free_bytes: free disk space. memory_bytes: available memory.
    """

    heat: int | None = None
    celsius: float | None = None
    battery: float | None = None
    charging: bool | None = None
    free_bytes: int | None = None
    memory_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits at which a job waits, in units of :class:`Conditions`; None: the library's default."""

    heat: int | None = None
    hottest: float | None = None
    cooled: float | None = None
    battery: float | None = None
    free_bytes: int | None = None
    memory_bytes: int | None = None
    poll_seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class View:
    """State of a job for display; None if unknown.

    Attributes:
        reason: why it waits or is paused. seconds_left: time for the remaining steps.
        anonymous_bytes: peak anonymous memory during a step.
        part: share of the examples read or evaluated, 0 to 1.
        best_step: step with the lowest validation loss.
        evaluations: validation results so far, by step.
    """

    phase: Phase
    reason: Reason
    step: int
    steps: int
    examples: int
    shortened: int
    loss: float | None
    seconds_left: float | None
    celsius: float | None
    anonymous_bytes: int
    before: Evaluation | None
    after: Evaluation | None
    part: float | None
    best_step: int | None
    evaluations: list[StepEvaluation]
    notice: str = ""


@dataclasses.dataclass(frozen=True)
class Typed:
    """A typed example: a prompt and its completion, or the messages of a conversation.

    Attributes:
        messages: (role, text) pairs; roles: "system", "user", "assistant". The last is learned.
    """

    prompt: str | None = None
    completion: str | None = None
    messages: Sequence[tuple[str, str]] = ()


def write_typed(path: Path, examples: Sequence[Typed], *, append: bool = False) -> None:
    """Write typed examples atomically as a data file.

    Args:
        append: append to an existing file instead of replacing it.

    Raises:
        DataError: an example cannot be trained on; the message has its number.
        StateError: the file cannot be written.
    """
    given: list[dict[str, Any]] = []
    for number, example in enumerate(examples, 1):
        messages = [{"role": role, "content": text} for role, text in example.messages]
        one: dict[str, Any] = {"prompt": example.prompt, "completion": example.completion}
        if messages or not any(one.values()):
            one["messages"] = messages
        given.append({key: value for key, value in one.items() if value is not None})
        try:
            abi.options(given[-1])
        except DataError as error:
            raise DataError(
                f"example {number}", found=error.found, expected=error.expected, fix=error.fix
            ) from None
    abi.call("zo_typed_write", abi.path_bytes(path), abi.options(given), int(append))


class Job(abi.Handle):
    """A job in a folder of its own. Use it in a ``with`` statement.

    :meth:`pause`, :meth:`cancel`, :attr:`view`, :attr:`losses` and :attr:`problem` may be used
    from any thread, and from the callbacks of :meth:`run`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        threads: int = 0,
        engine: Engine | None = None,
        cache: str | Path | None = None,
        trust: Trusted = None,
    ) -> None:
        """Open the job in ``folder``; an unfinished job of another process is paused.

        Args:
            threads, engine, cache, trust: see :meth:`zoexport.session.Session.open`.

        Raises:
            StateError: the folder cannot be created.
        """
        self._engine = EngineCallback(engine) if engine is not None else None
        given = abi.open_options(trust, threads=threads, cache=cache)
        table = ctypes.byref(self._engine.table) if self._engine is not None else None
        opened = abi.handle("zo_job_open", abi.path_bytes(folder), abi.options(given), table)
        super().__init__(opened, what="job", free="zo_job_close")

    def start(self, request: Request, answer: Answer = "ask") -> None:
        """Check and store a request, for :meth:`run`. On failure the job is unchanged.

        Args:
            answer: action if the state has steps with other examples or settings, or already has
                all steps: continue from there, or restart.

        Raises:
            QuestionError: the state is in this condition and ``answer`` is "ask".
            BundleError, DataError: the bundle or the examples cannot be used.
        """
        given = {**vars(request), "settings": dict(request.settings), "answer": answer}
        abi.call("zo_job_start", self.handle, abi.options(given))

    def run(
        self,
        *,
        conditions: Callable[[], Conditions] = Conditions,
        changed: Callable[[View], None] | None = None,
        limits: Limits = Limits(),
    ) -> None:
        """Train until the job is done, paused or cancelled.

        Args:
            conditions: called at least once per step.
            changed: called with the new view after every change.

        Raises:
            ZoExportError: the job failed; its progress is saved.
        """
        raised: list[BaseException] = []

        def safely(action: Callable[[], None]) -> None:
            """Run ``action``; an exception pauses the job and is raised after the run."""
            try:
                action()
            except BaseException as error:
                raised.append(error)
            if raised or interrupted.is_set():
                self.pause()

        def look(found: abi.Conditions) -> None:
            for name, value in vars(conditions()).items():
                if value is not None:
                    setattr(found, name, value)

        def show() -> None:
            if changed is not None:
                changed(self.view)

        host = abi.JobHost(
            conditions=abi.ON_CONDITIONS(lambda _, found: safely(lambda: look(found.contents))),
            changed=abi.ON_CHANGED(lambda _: safely(show)),
        )
        with abi.interrupts() as interrupted:
            abi.call("zo_job_run", self.handle, abi.options(vars(limits)), ctypes.byref(host))
        if raised:
            raise raised[0]

    def pause(self, reason: Reason = "asked") -> None:
        """Stop the run after its step, and save; or at once while it reads examples or evaluates.

        A :meth:`start` that is reading examples raises Cancelled. Does nothing otherwise.
        """
        self._beside("zo_job_pause", reason.encode())

    def cancel(self) -> None:
        """Drop the request. Its state stays."""
        abi.call("zo_job_cancel", self.handle)

    def discard(self) -> None:
        """Drop the request and remove the state of its bundle; refused while the job runs."""
        abi.call("zo_job_discard", self.handle)

    @property
    def view(self) -> View:
        """State of the job for display."""
        found = abi.result("zo_job_view", self.handle)
        for key in ("before", "after"):
            found[key] = None if found[key] is None else Evaluation(**found[key])
        found["evaluations"] = [StepEvaluation(**one) for one in found["evaluations"]]
        return View(**found)

    @property
    def losses(self) -> list[tuple[int, float]]:
        """(step, loss) for a chart, at most 400; each loss is the mean since the previous one."""
        return [(step, loss) for step, loss in abi.result("zo_job_losses", self.handle)]

    @property
    def problem(self) -> ZoExportError | None:
        """Reason why the job failed, waits or is paused."""
        found = abi.Error()
        abi.library().zo_job_problem(self.handle, ctypes.byref(found))
        return abi.exception(found) if found.code else None

    @property
    def requested(self) -> Request | None:
        """The request of the job."""
        found = abi.result("zo_job_request", self.handle)
        if found is None:
            return None
        for key in ("bundle", "data", "held_out"):
            found[key] = None if found[key] is None else Path(found[key])
        return Request(**found)

    def session(self) -> Session:
        """Open the bundle with the weights trained so far, to generate, evaluate or read."""
        return Session(abi.handle("zo_job_session", self.handle), None)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.close()
