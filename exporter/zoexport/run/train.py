"""``train`` and ``eval``: run a session on the examples of a data file.

To save memory, the training process imports neither torch nor transformers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
import signal
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from zoexport.core.errors import Cancelled, ConfigError, StateError
from zoexport.core.keywords import given
from zoexport.core.progress import Notice, Progress
from zoexport.core.settings import READING
from zoexport.data.sources import Data, as_file, splits
from zoexport.run.answers import answered, read_questions
from zoexport.run.generate import generator
from zoexport.run.logging import Reports, reports
from zoexport.run.progress import Shown, phases, stepping
from zoexport.run.results import Evaluated, Trained
from zoexport.run.states import attach
from zoexport.session import Bundle, StepEvaluation, Validation, describe_state, memory_usage
from zoexport.session import StepProgress as Step
from zoexport.session.data import reading

_MEGABYTE = 1e6
_OF_EVALUATIONS = ("choices", "dpo.beta", "orpo.beta", *READING)
"""Settings that an evaluation depends on."""


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Validation examples of a run; None keeps the run's value (``session.Validation``).

    Attributes:
        data: JSON Lines. every: steps between evaluations. patience: evaluations without a lower
            loss that end the run. keep: ``best`` or ``last``.
    """

    data: Path
    every: int | None = None
    patience: int | None = None
    keep: Literal["last", "best"] | None = None


@contextlib.contextmanager
def held_out(
    eval_data: Data | None,
    eval_every: int | None,
    patience: int | None,
    keep: Literal["last", "best"] | None,
) -> Iterator[HeldOut | None]:
    """Yield the validation examples of a run, with their data as a file.

    Raises:
        ConfigError: an option needs ``eval_data``. DataError: the data cannot be read.
    """
    if eval_data is not None:
        with as_file(eval_data) as file:
            yield HeldOut(file, eval_every, patience, keep)
        return
    for name, value in (("eval_every", eval_every), ("patience", patience), ("keep", keep)):
        if value is not None:
            raise ConfigError(
                name,
                found="no eval_data",
                expected="held-out examples to evaluate on",
                fix=f"Give eval_data, or leave {name} out.",
            )
    yield None


def train(
    bundle: Bundle,
    data: Data,
    *,
    state: str | os.PathLike[str],
    steps: int | None = None,
    epochs: float | None = None,
    progress: bool | Callable[[Step], object] = False,
    phase: Progress | None = None,
    learning_rate: float | None = None,
    lr_scheduler_type: Literal["constant", "linear", "cosine"] | None = None,
    warmup_steps: int | None = None,
    gradient_accumulation_steps: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    recover: bool = False,
    change_settings: bool = False,
    overwrite: bool = False,
    eval_data: Data | None = None,
    eval_every: int | None = None,
    patience: int | None = None,
    keep: Literal["last", "best"] | None = None,
    evaluated: Callable[[StepEvaluation], None] | None = None,
    report_to: str | Iterable[str] = (),
) -> Trained:
    """Train until the state has ``steps`` steps in total, with the session that runs on phones.

    Args:
        data: examples (docs/formats.md, "Training data"): a path, rows, a DataFrame, or a data set. Of a
            ``datasets.DatasetDict``, the split ``train``; ``validation`` or else ``test`` is the default of
            ``eval_data``.
        state: run directory; an existing run is resumed.
        steps: total number of steps, including those of an existing run.
        epochs: passes over the examples, instead of ``steps``.
        progress: True shows a progress bar, on a terminal and in a notebook; or a function, called after every step,
            which returns True to stop the run and save it.
        phase: called with each phase before the first step. None: shown by the bar, if there is one.
        learning_rate, lr_scheduler_type, warmup_steps: the learning rate, how it changes over the steps, and the
            steps over which it rises. None: the value of an existing run, or of the bundle; also for the next two.
        gradient_accumulation_steps: batches per update.
        seed: seed of adapters, noise and batches.
        settings: other settings of the run (``zoexport methods``), such as ``{"loss": "dpo", "dpo.beta": 0.2}``.
        recover: continue from the last good record of a damaged log.
        change_settings: allow other settings or data than the run's; refused by default.
        overwrite: start over if the folder has a state.
        eval_data: validation examples, evaluated before the first step, every ``eval_every`` steps
            (default: a tenth of all) and after the last. ``patience`` evaluations in a row without
            a lower loss end the run. Readers of the state get the weights of the best evaluation,
            or with ``keep="last"`` of the last step. A resumed run keeps these options.
        evaluated: called after each evaluation. None: shown by the bar, if there is one.
        report_to: ``tensorboard``, ``trackio``, ``jsonl``, or one with ``:PLACE`` (docs/choose.md); or several.

    Raises:
        ZoExportError: an input cannot be used, the run diverged, or it was stopped.
    """
    if (steps is None) == (epochs is None):
        raise ConfigError(
            "steps and epochs",
            found="neither" if steps is None else "both",
            expected="one of them",
            fix="Say how long to train: with steps or with epochs.",
        )
    data, eval_data = splits(data, eval_data)
    folder = Path(state)
    chosen = _chosen(
        bundle,
        given(
            settings,
            learning_rate=learning_rate,
            lr_scheduler_type=lr_scheduler_type,
            warmup_steps=warmup_steps,
            gradient_accumulation_steps=gradient_accumulation_steps,
            seed=seed,
        ),
    )
    over = {} if overwrite else settings_of_run(folder, bundle)
    reads = reading({**bundle.settings, **over, **chosen})
    watched = reports([report_to] if isinstance(report_to, str) else tuple(report_to), folder)
    with (
        contextlib.closing(watched),
        stepping("train", progress, phase, evaluated) as (on_step, shown, on_evaluated),
        as_file(data) as file,
        held_out(eval_data, eval_every, patience, keep) as validating,
        bundle.session() as session,
        bundle.examples(file, **reads, progress=shown) as (dataset, counts),
        _validation(bundle, validating, reads, shown, on_evaluated, watched) as validation,
    ):
        run = _Run(on_step, watched, shown)
        # Not before: unusable data must neither create nor remove a state.
        if overwrite and (folder / "state.json").is_file():
            shutil.rmtree(folder)
        session.attach(
            folder,
            seed=chosen.pop("seed", None),
            recover=recover,
            change_settings=change_settings,
        )
        session.configure(**chosen)
        if steps is None:
            known = session.settings
            each = known["batch_size"] * known.get("gradient_accumulation_steps", 1)
            steps = max(math.ceil((epochs or 0) * len(dataset) / each), 1)
        watched.begin(session, bundle.settings)
        shown("training", None)
        with run.stopping():
            session.train(
                dataset,
                steps,
                on_progress=run,
                validation=validation,
                # For validation, and while the reference model scores the examples.
                on_part=lambda done, total: shown("evaluating", done / total),
            )
        info = session.info
        losses = [session.record(step).loss for step in range(info.steps)]
        evaluations = session.evaluations
    return Trained(
        steps=len(losses),
        total_steps=steps,
        engine=info.engine,
        losses=losses,
        step_seconds_median=run.median_seconds(),
        peak_rss_mb=_megabytes(memory_usage().peak_rss_bytes),
        peak_anonymous_mb=_megabytes(run.peak_anonymous),
        state=folder,
        evaluations=[
            {key: value for key, value in dataclasses.asdict(one).items() if key != "best"}
            for one in evaluations
        ],
        best_step=next((one.step for one in evaluations if one.best), None),
        **counts,
    )


@contextlib.contextmanager
def _validation(
    bundle: Bundle,
    held_out: HeldOut | None,
    reads: dict[str, Any],
    phase: Progress,
    evaluated: Callable[[StepEvaluation], None],
    watched: Reports,
) -> Iterator[Validation | None]:
    if held_out is None:
        yield None
        return

    def found(evaluation: StepEvaluation) -> None:
        phase("training", None)
        watched.evaluated(evaluation)
        evaluated(evaluation)

    with bundle.examples(held_out.data, **reads, progress=phase) as (dataset, _):
        yield Validation(
            dataset,
            held_out.every,
            held_out.patience,
            held_out.keep,
            on_evaluated=found,
        )


def evaluate(
    bundle: Bundle,
    data: Data,
    *,
    state: str | os.PathLike[str] | None = None,
    generate: bool = False,
    max_new_tokens: int = 64,
    stop: Iterable[str] = (),
    progress: Shown = False,
    settings: Mapping[str, Any] | None = None,
    last: bool = False,
) -> Evaluated:
    """Return loss and accuracies of a state, or of the bundle as compiled.

    Args:
        data: examples (docs/formats.md).
        state: folder of a training state, with its pending update applied; not modified.
        generate: also generate a completion for each prompt and compute SQuAD scores.
        max_new_tokens, stop: of completions; see :meth:`zoexport.Bundle.generate`.
        progress: as for :func:`zoexport.compile`.
        settings: settings of the loss and ``pack``, such as ``{"loss": "choices"}``; no others.
        last: use the weights of the last step, even if the run keeps its best ones.

    Raises:
        ZoExportError: an input cannot be used.
    """
    chosen = _chosen(bundle, settings or {})
    for key in chosen:
        if key not in _OF_EVALUATIONS:
            raise ConfigError(
                f"setting {key!r}",
                found="a setting that evaluation does not use",
                expected=" or ".join(_OF_EVALUATIONS),
                fix="Leave it out, or give it to 'zoexport train'.",
            )
    folder = None if state is None else Path(state)
    reads = reading({**bundle.settings, **chosen})
    with phases("eval", progress) as shown, as_file(data) as file:
        questions = read_questions(file) if generate else []
        with bundle.session() as session:
            if folder is not None:
                attach(session, folder, last=last)
            session.configure(**chosen)
            with bundle.examples(file, **reads, progress=shown) as (dataset, counts):
                shown("evaluating", None)
                found = session.evaluate(
                    dataset, lambda done, total: shown("evaluating", done / total)
                )
            if notice := session.info.notice:
                shown(Notice(notice), None)
        answers: dict[str, Any] = {}
        if generate:
            with generator(bundle, state=folder, last=last) as opened:
                answers = answered(opened, questions, max_new_tokens, tuple(stop), shown)
    return Evaluated(
        loss=found.loss,
        accuracy=found.accuracy,
        token_accuracy=found.token_accuracy,
        margin=found.margin,
        **counts,
        **answers,
    )


def settings_of_run(state: Path, bundle: Bundle) -> dict[str, Any]:
    """Return the settings of a resumed run: the bundle's, overridden by those of the run."""
    settings = bundle.settings
    with contextlib.suppress(StateError):  # attaching reports what is wrong with the state
        found = describe_state(state)
        if found["steps"] > 0 and found["settings"] is not None:
            settings |= found["settings"]
    return settings


def _chosen(bundle: Bundle, settings: Mapping[str, Any]) -> dict[str, Any]:
    if not settings:
        return {}  # a process that trains need not load the methods
    from zoexport.methods import runtime_settings

    return runtime_settings(bundle.method, settings)


class _Run:
    """Collect the statistics of a run, and stop the session after a signal."""

    def __init__(
        self, progress: Callable[[Step], object], watched: Reports, phase: Progress
    ) -> None:
        self._progress = progress
        self._phase = phase
        self._watched = watched
        self._seconds: list[float] = []
        self._stop = self._ended = False
        self.peak_anonymous = 0

    def __call__(self, now: Step) -> bool:
        """Session callback; return True to stop the run after saving."""
        self._seconds.append(now.seconds)
        self.peak_anonymous = max(self.peak_anonymous, now.anonymous_bytes)
        self._watched.step(now)
        if now.notice:
            self._phase(Notice(now.notice), None)
        self._ended = self._progress(now) is True
        return self._stop or self._ended

    def median_seconds(self) -> float | None:
        """Return the median time per step of this call; None without steps."""
        return round(statistics.median(self._seconds), 6) if self._seconds else None

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """End the run after the current step on SIGTERM, like on SIGINT; a stop by the callback is no error."""
        try:
            with self._stopping_on_sigterm():
                yield
        except Cancelled:
            if self._stop or not self._ended:
                raise

    @contextlib.contextmanager
    def _stopping_on_sigterm(self) -> Iterator[None]:
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
