"""``train`` and ``eval``: a session on the examples of a data file.

The process that steps imports neither torch nor transformers, so that its memory is that of training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from zoexport.core.config import as_dict, parse
from zoexport.core.errors import ConfigError, StateError
from zoexport.core.types import Progress
from zoexport.run.logging import Reports, reports
from zoexport.session import (
    Session,
    StepEvaluation,
    Validation,
    describe_state,
    memory_usage,
    read_manifest,
)
from zoexport.session import StepProgress as Step
from zoexport.session.data import read_examples, reading

_MEGABYTE = 1e6
_OF_EVALUATIONS = ("loss", "choices", "dpo.beta", "orpo.beta", "pack")
"""Settings that an evaluation depends on."""


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Examples that a run evaluates on while it trains; what is None is as the run has it (``session.Validation``).

    Attributes:
        data: JSON Lines. every: steps from one evaluation to the next. patience: evaluations without a lower loss that
            end the run. keep: ``best`` or ``last``.
    """

    data: Path
    every: int | None = None
    patience: int | None = None
    keep: Literal["last", "best"] | None = None


def train(
    bundle: Path,
    *,
    data: Path,
    state: Path,
    steps: int,
    settings: Mapping[str, Any],
    progress: Callable[[Step], None],
    phase: Progress,
    recover: bool = False,
    change_settings: bool = False,
    held_out: HeldOut | None = None,
    evaluated: Callable[[StepEvaluation], None] | None = None,
    report_to: Sequence[str] = (),
    engine: str | None = None,
) -> dict[str, Any]:
    """Train until the state has ``steps`` steps in total, or what is held out has no lower loss any more.

    Args:
        bundle: the bundle's folder.
        data: examples as JSON Lines.
        state: the state's folder; created where there is none.
        steps: in total, those that the state already has included.
        settings: what need not be compiled in, by key; what is not given is the run's, or the bundle's for a new one.
        progress: called after every step.
        phase: called with what happens before the first step.
        recover: go on from the last good record of a damaged log.
        change_settings: go on with other settings or data than the run's.
        held_out: what is evaluated on meanwhile. evaluated: called after each evaluation.
        report_to: where steps and evaluations are reported (``run.logging``).
        engine: which of the engines that the bundle has programs for; the manifest's where None.

    Returns:
        The keys of ``train --json``, with ``examples`` and ``shortened``, and ``packed_problem``: why packed weights
        are not kept in a file, empty where they are. ``losses`` has every step of the state; the
        median and the peaks are of this call.

    Raises:
        ZoExportError: something cannot be used, the run diverged, or it was stopped.
    """
    manifest = read_manifest(bundle)
    chosen = runtime_settings(manifest, settings)
    reads = reading({**settings_of_run(state, manifest), **chosen})
    watched = reports(report_to, state)
    run = _Run(progress, watched)
    with (
        contextlib.closing(watched),
        Session.open(bundle, engine_name=engine) as session,
        read_examples(bundle, data, **reads, progress=phase) as (dataset, counts),
        _validation(bundle, held_out, reads, phase, evaluated, watched) as validation,
    ):
        # Only now: data that cannot be used must not leave a state behind.
        session.attach(
            state,
            seed=chosen.pop("seed", None),
            recover=recover,
            change_settings=change_settings,
        )
        session.configure(**chosen)
        watched.begin(session, manifest["settings"])
        phase("training", None)
        with run.stopping_on_sigterm():
            session.train(
                dataset,
                steps,
                on_progress=run,
                validation=validation,
                # Of held-out examples, and of what the reference model scores.
                on_part=lambda done, total: phase("evaluating", done / total),
            )
        info = session.info
        losses = [session.record(step).loss for step in range(info.steps)]
        evaluations = session.evaluations
    return {
        "steps": len(losses),
        "losses": losses,
        "step_seconds_median": run.median_seconds(),
        "peak_rss_mb": _megabytes(memory_usage().peak_rss_bytes),
        "peak_anonymous_mb": _megabytes(run.peak_anonymous),
        "state": str(state),
        "packed_problem": info.packed_problem,
        "evaluations": [
            {key: value for key, value in dataclasses.asdict(one).items() if key != "best"}
            for one in evaluations
        ],
        "best_step": next((one.step for one in evaluations if one.best), None),
        **counts,
    }


@contextlib.contextmanager
def _validation(
    bundle: Path,
    held_out: HeldOut | None,
    reads: dict[str, Any],
    phase: Progress,
    evaluated: Callable[[StepEvaluation], None] | None,
    watched: Reports,
) -> Iterator[Validation | None]:
    if held_out is None:
        yield None
        return

    def found(evaluation: StepEvaluation) -> None:
        phase("training", None)
        watched.evaluated(evaluation)
        if evaluated is not None:
            evaluated(evaluation)

    with read_examples(bundle, held_out.data, **reads, progress=phase) as (dataset, _):
        yield Validation(
            dataset,
            held_out.every,
            held_out.patience,
            held_out.keep,
            on_evaluated=found,
        )


def evaluate(
    bundle: Path,
    *,
    data: Path,
    state: Path | None,
    settings: Mapping[str, Any],
    phase: Progress,
    last: bool = False,
    engine: str | None = None,
) -> dict[str, Any]:
    """Evaluate a state, or the bundle as compiled; changes neither.

    Args:
        bundle: the bundle's folder.
        data: examples as JSON Lines.
        state: the state's folder; its pending update is applied to what is evaluated.
        settings: only those of the loss, and ``pack``.
        phase: called with what is being done.
        last: the values of the last step, also where the run keeps its best.
        engine: as of :func:`train`.

    Returns:
        The keys of ``eval --json``, with ``shortened``.

    Raises:
        ZoExportError: something cannot be used.
    """
    manifest = read_manifest(bundle)
    for key in settings:
        if key not in _OF_EVALUATIONS:
            raise ConfigError(
                f"setting {key!r}",
                found="a setting that evaluation does not use",
                expected=" or ".join(_OF_EVALUATIONS),
                fix="Leave it out, or give it to 'zoexport train'.",
            )
    chosen = runtime_settings(manifest, settings)
    reads = reading({**manifest["settings"], **chosen})
    with Session.open(bundle, engine_name=engine) as session:
        if state is not None:
            session.attach(state, read_only=True, last=last)
        session.configure(**chosen)
        with read_examples(bundle, data, **reads, progress=phase) as (dataset, counts):
            phase("evaluating", None)
            found = session.evaluate(dataset, lambda done, total: phase("evaluating", done / total))
    return {
        "loss": found.loss,
        "accuracy": found.accuracy,
        "token_accuracy": found.token_accuracy,
        "margin": found.margin,
        **counts,
    }


def settings_of_run(state: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a state goes on with: those of its run, before those of the bundle."""
    settings = manifest["settings"]
    with contextlib.suppress(StateError):  # attaching says what is wrong with the state
        found = describe_state(state)
        if found["steps"] > 0 and found["settings"] is not None:
            settings = {**settings, **found["settings"]}
    return dict(settings)


def runtime_settings(manifest: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of ``train --set`` with their types, checked by the method's own rules.

    Raises:
        ConfigError: unknown, impossible, or compiled into the bundle.
    """
    if not settings:
        return {}
    from zoexport.methods import methods

    config: Any = parse(methods.get(manifest["method"]).config, settings, runtime_only=True)
    chosen = as_dict(config)
    return {key: chosen[key] for key in settings}


class _Run:
    """Follows a run for its figures, and asks the session to stop when a signal came."""

    def __init__(self, progress: Callable[[Step], None], watched: Reports) -> None:
        self._progress = progress
        self._watched = watched
        self._seconds: list[float] = []
        self._stop = False
        self.peak_anonymous = 0

    def __call__(self, now: Step) -> bool:
        """The session's callback; True stops the run after saving."""
        self._seconds.append(now.seconds)
        self.peak_anonymous = max(self.peak_anonymous, now.anonymous_bytes)
        self._watched.step(now)
        self._progress(now)
        return self._stop

    def median_seconds(self) -> float | None:
        """The median time of this call's steps; None where it took none."""
        return round(statistics.median(self._seconds), 6) if self._seconds else None

    @contextlib.contextmanager
    def stopping_on_sigterm(self) -> Iterator[None]:
        """While inside, SIGTERM ends the run after the current step, as the session lets SIGINT do."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._request_stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop = True


def _megabytes(count: int | None) -> float | None:
    return round(count / _MEGABYTE, 1) if count else None
