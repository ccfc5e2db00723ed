"""A job: one fine-tuning with a person around it, as the apps have it (runtime_ops/include/zoexport/job.h)."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from zoexport.core.errors import DataError, ZoExportError
from zoexport.session import abi, structs
from zoexport.session.handles import Handle
from zoexport.session.host import Session
from zoexport.session.support import (
    at_least,
    evaluation_of,
    evaluations,
    interrupts,
    keys_of,
    known,
    open_options,
    position,
)
from zoexport.session.types import Engine, EngineCallback, Evaluation, StepEvaluation

Answer = Literal["ask", "continue", "anew"]
Phase = Literal[
    "idle", "preparing", "evaluating", "training", "waiting", "paused", "failed", "done"
]
Keep = Literal["last", "best"]
Reason = Literal["none", "asked", "heat", "battery", "disk", "memory", "background"]
# In the order of the ABI's numbers.
ANSWERS: tuple[Answer, ...] = ("ask", "continue", "anew")
PHASES: tuple[Phase, ...] = (
    *("idle", "preparing", "evaluating", "training"),
    *("waiting", "paused", "failed", "done"),
)
REASONS: tuple[Reason, ...] = (
    *("none", "asked", "heat", "battery"),
    *("disk", "memory", "background"),
)

_KEEPS: tuple[Keep | None, ...] = (None, "last", "best")
"""As ``structs.KEEPS``."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What is to be trained.

    Attributes:
        bundle: its folder. data: examples, as ``zoexport train --data`` takes them.
        steps: in total, those of an earlier run of the same state included.
        lr: None: that of the run, or of the bundle.
        held_out: examples to evaluate on, also while it trains; None: ``data``, and not meanwhile.
        evaluate: before the first step, and of what is kept of the run.
        eval_every, patience, keep: of held-out examples, as :class:`zoexport.session.Validation` has them.
        engine_name: which of the engines that the bundle has programs for, in all runs of the request; None: its own.
    """

    bundle: Path
    data: Path
    steps: int
    lr: float | None = None
    held_out: Path | None = None
    evaluate: bool = False
    eval_every: int | None = None
    patience: int | None = None
    keep: Keep | None = None
    engine_name: str | None = None


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What the device says of itself; None: not known.

    Attributes:
        heat: 0 (nominal) to 3 (critical). celsius: of the battery. battery: its charge, 0 to 1.
        charging: whether it has power. free_bytes: on the disk. memory_bytes: that the process may still take.
    """

    heat: int | None = None
    celsius: float | None = None
    battery: float | None = None
    charging: bool | None = None
    free_bytes: int | None = None
    memory_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Limits:
    """When a job waits, in the units of :class:`Conditions`; None: as ``zo_limits_default`` has it."""

    heat: int | None = None
    hottest: float | None = None
    cooled: float | None = None
    battery: float | None = None
    free_bytes: int | None = None
    memory_bytes: int | None = None
    poll_seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class View:
    """What a screen shows of a job; what is not known is None.

    Attributes:
        reason: why it waits or is paused. seconds_left: of the steps that are left.
        anonymous_bytes: the most that was seen during a step.
        part: of the examples that are read or evaluated on, 0 to 1.
        best_step: that of the lowest loss on held-out examples (:attr:`Job.evaluations`).
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


@dataclasses.dataclass(frozen=True)
class Typed:
    """An example that a person typed: a prompt and its completion, or else the messages of a conversation.

    Attributes:
        messages: roles ("system", "user", "assistant") and texts in turn; the last is the assistant's, and is learned.
    """

    prompt: str | None = None
    completion: str | None = None
    messages: Sequence[tuple[str, str]] = ()


def write_typed(path: Path, examples: Sequence[Typed], *, append: bool = False) -> None:
    """Write examples that a person typed as a data file, whole or not at all.

    Args:
        append: after the lines of the file that is there; else in place of it.

    Raises:
        DataError: an example that could not be learned, by its number.
        StateError: the file cannot be written.
    """
    given = (structs.TypedExample * max(len(examples), 1))()
    for number, example in enumerate(examples):
        texts = [example.prompt, example.completion, *itertools.chain(*example.messages)]
        if any("\0" in text for text in texts if text is not None):
            raise DataError(
                f"example {number + 1}",
                found="a zero character",
                expected="text without one",
                fix="Correct the text.",
            )
        given[number] = structs.TypedExample(
            ctypes.sizeof(structs.TypedExample),
            0,
            *(
                None if text is None else text.encode("utf-8", "surrogatepass")
                for text in texts[:2]
            ),
            structs.messages(example.messages),
            len(example.messages),
        )
    abi.call("zo_typed_write", abi.path_bytes(path), given, len(examples), int(append))


class Job(Handle):
    """A job in a folder of its own. Use it in a ``with`` statement.

    :meth:`pause`, :meth:`cancel`, :attr:`view`, :attr:`losses`, :attr:`evaluations` and :attr:`problem` may be used
    from any thread, and from within what :meth:`run` calls.
    """

    def __init__(
        self,
        folder: Path,
        *,
        threads: int = 0,
        engine: Engine | None = None,
        cache: str | Path | None = None,
        trust: Iterable[str | os.PathLike[str]] | None = None,
    ) -> None:
        """Open the job in ``folder``; what another process left unfinished is there, paused.

        Args:
            threads, engine, cache, trust: as :meth:`zoexport.session.Session.open` takes them.

        Raises:
            StateError: the folder cannot be made.
        """
        self._engine = EngineCallback(engine) if engine is not None else None
        self._options = open_options(
            keys_of(trust), threads=threads, engine=self._engine, cache=cache
        )
        handle = ctypes.c_void_p()
        abi.call("zo_job_open", abi.path_bytes(folder), ctypes.byref(handle))
        super().__init__(handle.value, what="job", free="zo_job_close")

    def start(self, request: Request, answer: Answer = "ask") -> None:
        """Check and keep a request, for :meth:`run`. On failure the job is as it was.

        Args:
            answer: what is meant where the bundle's state has steps of other examples or another rate, or all of them:
                to go on from there, or anew.

        Raises:
            QuestionError: the state is such a one, and ``answer`` is "ask".
            BundleError, DataError: bundle or examples cannot be used.
        """
        given = structs.JobRequest(
            ctypes.sizeof(structs.JobRequest),
            int(request.evaluate),
            abi.path_bytes(request.bundle),
            abi.path_bytes(request.data),
            None if request.held_out is None else abi.path_bytes(request.held_out),
            request.steps,
            request.lr or 0,
            0 if request.eval_every is None else at_least(1, "eval_every", request.eval_every),
            0 if request.patience is None else at_least(1, "patience", request.patience),
            position("keep", request.keep or "default", structs.KEEPS),
            0,
            None if request.engine_name is None else request.engine_name.encode(),
        )
        abi.call(
            *("zo_job_start", self.handle, ctypes.byref(given), ANSWERS.index(answer)),
            ctypes.byref(self._options),
        )

    def run(
        self,
        *,
        conditions: Callable[[], Conditions] = Conditions,
        changed: Callable[[View], None] | None = None,
        limits: Limits = Limits(),
    ) -> None:
        """Train until the job is done, paused or cancelled.

        Args:
            conditions: asked at least once for every step.
            changed: called with the new view after every change.

        Raises:
            ZoExportError: it failed; what was reached is saved.
        """
        raised: list[BaseException] = []

        def safely(action: Callable[[], None]) -> None:
            """An exception does not cross the library: it ends the run, and is raised once that has ended."""
            try:
                action()
            except BaseException as error:
                raised.append(error)
            if raised or interrupted.is_set():
                self.pause()

        def look(found: structs.Conditions) -> None:
            _set_known(found, conditions())

        def show() -> None:
            if changed is not None:
                changed(self.view)

        given = structs.sized(structs.Limits)
        abi.call("zo_limits_default", ctypes.byref(given))
        _set_known(given, limits)
        host = structs.JobHost(
            struct_size=ctypes.sizeof(structs.JobHost),
            conditions=structs.ON_CONDITIONS(lambda _, found: safely(lambda: look(found.contents))),
            changed=structs.ON_CHANGED(lambda _: safely(show)),
            limits=ctypes.pointer(given),
        )
        with interrupts() as interrupted:
            abi.call("zo_job_run", self.handle, ctypes.byref(host), ctypes.byref(self._options))
        if raised:
            raise raised[0]

    def pause(self, reason: Reason = "asked") -> None:
        """End the run that runs: after its step, saved, or where it reads examples or evaluates.

        A :meth:`start` that reads examples raises Cancelled. Without either, nothing happens.
        """
        self._beside("zo_job_pause", REASONS.index(reason))

    def cancel(self) -> None:
        """Drop the request. Its state stays."""
        abi.call("zo_job_cancel", self.handle)

    def discard(self) -> None:
        """Drop the request and remove the state of its bundle; refused while the job runs."""
        abi.call("zo_job_discard", self.handle)

    @property
    def view(self) -> View:
        """What there is to show."""
        found = structs.sized(structs.JobView)
        abi.call("zo_job_view_of", self.handle, ctypes.byref(found))
        return View(
            phase=PHASES[found.phase],
            reason=REASONS[found.reason],
            step=found.step,
            steps=found.steps,
            examples=found.examples,
            shortened=found.shortened,
            loss=known(found.loss),
            seconds_left=known(found.seconds_left),
            celsius=known(found.celsius),
            anonymous_bytes=found.anonymous_bytes,
            before=evaluation_of(found.before) if found.has_before else None,
            after=evaluation_of(found.after) if found.has_after else None,
            part=known(found.part),
            best_step=found.best_step if found.has_best else None,
        )

    @property
    def losses(self) -> list[tuple[int, float]]:
        """Steps and losses for a chart, at most 400: each loss is the mean of the steps since the one before."""
        room = 512
        count = ctypes.c_size_t(room)
        points = (structs.LossPoint * room)()
        abi.call("zo_job_losses", self.handle, points, ctypes.byref(count))
        return [(point.step, point.loss) for point in points[: count.value]]

    @property
    def evaluations(self) -> list[StepEvaluation]:
        """What the run found on its held-out examples so far, by steps."""
        return evaluations("zo_job_evaluated", self.handle)

    @property
    def problem(self) -> ZoExportError | None:
        """Why the job failed, waits or is paused."""
        found = structs.Error()
        abi.library().zo_job_problem(self.handle, ctypes.byref(found))
        return abi.exception(found) if found.code else None

    @property
    def requested(self) -> Request | None:
        """What the job was asked for."""
        found = structs.sized(structs.JobRequest)
        abi.call("zo_job_requested", self.handle, ctypes.byref(found))
        if not found.bundle:
            return None
        return Request(
            bundle=Path(os.fsdecode(found.bundle)),
            data=Path(os.fsdecode(found.data)),
            steps=found.steps,
            lr=found.lr or None,
            held_out=Path(os.fsdecode(found.held_out)) if found.held_out else None,
            evaluate=bool(found.evaluate),
            eval_every=found.eval_every or None,
            patience=found.patience or None,
            keep=_KEEPS[found.keep],
            engine_name=found.engine_name.decode() or None,
        )

    def session(self) -> Session:
        """The request's bundle with what was trained so far, open to generate, evaluate or read."""
        handle = ctypes.c_void_p()
        abi.call("zo_job_session", self.handle, ctypes.byref(self._options), ctypes.byref(handle))
        assert handle.value is not None
        return Session(handle.value, None)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.close()


def _set_known(target: ctypes.Structure, values: Any) -> None:
    """Give a struct's fields what a dataclass of the same names knows."""
    for field in dataclasses.fields(values):
        value = getattr(values, field.name)
        if value is not None:
            setattr(target, field.name, value)
