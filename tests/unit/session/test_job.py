"""A job's life over an engine of its own: phases, waits, questions, what other processes find, the losses' points."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import bundles, tokenizers
from zoexport.core.errors import (
    Cancelled,
    ConfigError,
    DataError,
    DivergedError,
    QuestionError,
    StateError,
    ZoExportError,
)
from zoexport.session import Dataset, Session, Tensor, Validation
from zoexport.session.data import Tokenizer
from zoexport.session.job import Conditions, Job, Limits, Request, View

VOCABULARY = 4000
STEPS = 30
QUICK = Limits(poll_seconds=0.005)


class Engine:
    """Losses that depend on the slot and the tokens, whatever the vocabulary; ``worse`` is added to each."""

    def __init__(self) -> None:
        self.worse = 0.0

    def __call__(
        self, program: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> None:
        slot = np.frombuffer(inputs[bundles.SLOT].data, np.float32)
        labels = np.frombuffer(inputs["label_tokens"].data, np.int64)
        for name, output in outputs.items():
            values = np.frombuffer(output.data, np.float32 if name != "is_argmax" else np.uint8)
            if name == bundles.SLOT:
                values[:] = slot * np.float32(0.5)
            elif name == "logprobs":
                spread = np.arange(values.size) % 3 + labels[0] % 5 + abs(float(slot.sum()))
                values[:] = -1 - 0.01 * spread - self.worse
            else:
                values[:] = 1


class App:
    """A job's folder, with what an app has around it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = Engine()
        files = folder / "files"
        tokenizers.tokenizer("gpt2").save_pretrained(files)
        bundles.write_bundle(folder / "like", max_length=24)
        model = json.loads((folder / "like" / "manifest.json").read_text())["model"]
        changes = {"text": {"end_tokens": []}, "model": {**model, "vocab_size": VOCABULARY}}
        self.bundle = tokenizers.write_bundle(
            folder / "app" / "bundles" / "one",
            files,
            changes=changes,
            write=lambda path: bundles.write_bundle(path, max_length=24),
        )
        self.data = self.examples("data", [" warm", " cold"])
        self.seen: list[View] = []
        self.now = Conditions(celsius=30.0, battery=0.8, charging=False, free_bytes=10**12)

    def examples(self, name: str, words: list[str]) -> Path:
        path = self.folder / "app" / f"{name}.jsonl"
        lines = [
            {"prompt": f"It was {n}:", "completion": words[n % 2], "choices": words}
            for n in range(4)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def request(self, *, steps: int = STEPS, **others: object) -> Request:
        return Request(**{"bundle": self.bundle, "data": self.data, "steps": steps, **others})  # type: ignore[arg-type]

    def job(self) -> Job:
        return Job(self.folder / "app", engine=self.engine, cache="")

    def run(self, job: Job, on_view: Callable[[View], None] | None = None) -> list[str]:
        """Run a job to its end; the phases that it showed, without repetitions."""
        self.seen = []

        def changed(view: View) -> None:
            self.seen.append(view)
            if on_view is not None:
                on_view(view)

        job.run(conditions=lambda: self.now, changed=changed, limits=QUICK)
        phases = [view.phase for view in self.seen]
        return [phase for i, phase in enumerate(phases) if i == 0 or phases[i - 1] != phase]

    def state(self) -> Path:
        (found,) = (self.folder / "app" / "states").iterdir()
        return found


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(tmp_path)


def log(state: Path) -> bytes:
    return (state / "trajectory.log").read_bytes()


def whole(
    app: App,
    folder: Path,
    data: Path | None = None,
    *,
    steps: int = STEPS,
    learning_rate: float | None = None,
) -> bytes:
    """The log of a session that trains without a job."""
    with (
        Session.open(app.bundle, engine=app.engine) as session,
        Tokenizer.open(app.bundle) as tokenizer,
        Dataset() as dataset,
    ):
        dataset.read(data or app.data, tokenizer, loss=session.settings["loss"])
        session.attach(folder)
        if learning_rate is not None:
            session.configure(learning_rate=learning_rate)
        session.train(dataset, steps)
    return log(folder)


def test_a_whole_job_evaluates_trains_and_is_found_done(app: App, tmp_path: Path) -> None:
    with app.job() as job:
        assert (job.view.phase, job.requested) == ("idle", None)
        with pytest.raises(ConfigError, match="nothing to run"):
            job.run()
        job.start(app.request(evaluate=True, settings={"learning_rate": 0.02}))
        assert (job.view.phase, job.view.examples, job.view.steps) == ("paused", 4, STEPS)
        phases = app.run(job)
        assert phases == ["preparing", "evaluating", "training", "evaluating", "done"]
        assert [view.step for view in app.seen if view.loss is not None][-1] == STEPS
        left = [view.seconds_left for view in app.seen if view.phase == "training"]
        assert left[-1] == 0
        assert app.seen[-1].celsius == 30.0
        view = job.view
        assert view.before is not None and view.after is not None
        assert view.before.examples == 4 and view.before.accuracy is not None
        assert [step for step, _ in job.losses] == list(range(1, STEPS + 1))
        assert job.problem is None
    with app.job() as again:
        view = again.view
        assert (view.phase, view.step, view.steps) == ("done", STEPS, STEPS)
        assert view.before is not None and view.after is not None
        assert again.requested == app.request(evaluate=True, settings={"learning_rate": 0.02})
    assert log(app.state()) == whole(app, tmp_path / "other", learning_rate=0.02)


def held_out(app: App, name: str = "held") -> Path:
    """Five examples, whose loss depends on the step in no order."""
    path = app.examples(name, [" a", " b"])
    with path.open("a") as file:
        file.write(json.dumps({"prompt": name, "completion": " a", "choices": [" a", " b"]}) + "\n")
    return path


def validated(app: App, folder: Path, held: Path, *, steps: int = STEPS, **options: Any) -> bytes:
    """evaluations.json of a session that trains without a job."""
    with (
        Session.open(app.bundle, engine=app.engine) as session,
        Tokenizer.open(app.bundle) as tokenizer,
        Dataset() as dataset,
        Dataset() as held_out,
    ):
        dataset.read(app.data, tokenizer, loss=session.settings["loss"])
        held_out.read(held, tokenizer, loss=session.settings["loss"])
        session.attach(folder)
        session.train(dataset, steps, validation=Validation(held_out, **options))
    return (folder / "evaluations.json").read_bytes()


def test_held_out_examples_are_evaluated_before_meanwhile_and_after(
    app: App, tmp_path: Path
) -> None:
    held = held_out(app)
    calls = 0

    def counted(*given: Any) -> None:
        nonlocal calls
        calls += 1
        engine(*given)

    engine, app.engine = app.engine, counted  # type: ignore[assignment]
    with app.job() as job:
        job.start(app.request(evaluate=True, held_out=held, eval_every=7))
        phases = app.run(job)
        # What takes less than a twentieth of a second may be shown or not, but for the first.
        assert phases[:3] == ["preparing", "training", "evaluating"]
        assert set(phases[3:-1]) <= {"training", "evaluating"} and phases[-1] == "done"
        found, view = job.view.evaluations, job.view
        assert [one.step for one in found] == [0, 7, 14, 21, 28, 30]
        best = min(found[1:], key=lambda one: one.loss)
        assert [one.step for one in found if one.best] == [best.step] == [view.best_step]
        # Before is what the bundle says, after what the adapter says that is shared: the best.
        for told, one in ((view.before, found[0]), (view.after, best)):
            assert told is not None and told.examples == 5
            assert (told.loss, told.accuracy) == (one.loss, one.accuracy)
        with job.session() as session:
            assert session.info.steps == best.step
    with app.job() as again:
        shown = again.view
        assert again.view.evaluations == found and shown.best_step == best.step
        assert (shown.before, shown.after) == (view.before, view.after)
    whole = calls
    calls = 0
    expected = validated(app, tmp_path / "other", held, every=7)
    assert (app.state() / "evaluations.json").read_bytes() == expected
    assert log(app.state()) == log(tmp_path / "other")
    assert calls == whole  # nothing was evaluated twice


@pytest.mark.parametrize("where", ["training", "evaluating"])
def test_paused_a_run_with_held_out_examples_goes_on_as_the_same(
    app: App, tmp_path: Path, where: str
) -> None:
    held = held_out(app)
    asked = app.request(
        evaluate=True, held_out=held, eval_every=4, patience=100, keep="last", steps=STEPS
    )
    with app.job() as job:
        job.start(asked)

        def on_view(view: View) -> None:
            if view.phase == where and view.step == (8 if where == "training" else 0):
                job.pause()

        assert app.run(job, on_view)[-1] == "paused"
        steps = [one.step for one in job.view.evaluations]
        assert steps == ([0, 4] if where == "training" else [0])
        assert job.view.step == (8 if where == "training" else 0)
    with app.job() as again:
        # A state without a step is not kept.
        kept = steps if where == "training" else []
        assert again.requested == asked and [one.step for one in again.view.evaluations] == kept
        assert app.run(again)[-1] == "done"
        view = again.view
        assert view.before is not None and view.after is not None
        assert view.after.loss == again.view.evaluations[-1].loss  # keep last
        with again.session() as session:
            assert session.info.steps == STEPS
    expected = validated(app, tmp_path / "other", held, every=4, patience=100, keep="last")
    assert (app.state() / "evaluations.json").read_bytes() == expected
    assert log(app.state()) == log(tmp_path / "other")


def test_patience_ends_a_run_and_going_on_is_a_question(app: App) -> None:
    held = held_out(app)

    def on_view(view: View) -> None:
        app.engine.worse = 0.001 * view.step

    asked = {"evaluate": True, "held_out": held, "eval_every": 3, "patience": 2}
    with app.job() as job:
        job.start(app.request(**asked))
        assert app.run(job, on_view)[-1] == "done"
        assert (job.view.step, job.view.steps, job.view.best_step) == (9, STEPS, 3)
        with pytest.raises(QuestionError, match="Ask for more patience"):
            job.start(app.request(**asked))
        with pytest.raises(QuestionError, match="Ask for more patience"):
            job.start(app.request(**{**asked, "steps": 2 * STEPS}), "continue")
        more = app.request(**{**asked, "patience": 3})
        with pytest.raises(QuestionError, match=r"5 held-out .* patience 2, .* patience 3"):
            job.start(more)
        job.start(more, "continue")
        assert app.run(job, on_view)[-1] == "done"
        assert (job.view.step, job.view.best_step) == (12, 3)


def test_other_held_out_examples_with_an_old_state_are_a_question(app: App) -> None:
    held, other = held_out(app), held_out(app, "other")
    with app.job() as job:
        job.start(app.request(steps=4, evaluate=True, held_out=held, eval_every=2))
        app.run(job)
        before = job.view.evaluations
        longer = app.request(steps=6, evaluate=True, held_out=held)
        job.start(longer)  # the same run, longer: what is not asked for is as it was
        assert app.run(job)[-1] == "done"
        assert [one.step for one in job.view.evaluations] == [0, 2, 4, 6]
        assert job.view.evaluations[:2] == [
            dataclasses.replace(one, best=job.view.evaluations[number].best)
            for number, one in enumerate(before[:2])
        ]
        with pytest.raises(QuestionError, match="5 other held-out examples every 2 steps"):
            job.start(app.request(steps=9, held_out=other))
        with pytest.raises(QuestionError, match="steps with no held-out examples"):
            job.start(app.request(steps=9))
        job.start(app.request(steps=9, evaluate=True, held_out=other, eval_every=4), "continue")
        assert app.run(job)[-1] == "done"
        # Losses on other examples cannot be compared: those before are forgotten.
        assert [one.step for one in job.view.evaluations] == [8, 9]
        assert job.view.before is not None and job.view.after is not None


def test_a_run_that_began_without_held_out_examples_takes_some(app: App) -> None:
    with app.job() as job:
        job.start(app.request(steps=5))
        app.run(job)
        assert (job.view.evaluations, job.view.best_step, job.view.before) == ([], None, None)
        job.start(app.request(steps=9, evaluate=True, held_out=held_out(app), eval_every=2))
        assert app.run(job)[-1] == "done"
        assert [one.step for one in job.view.evaluations] == [6, 8, 9]
        assert job.view.before is not None and job.view.before.examples == 5


def test_a_wait_during_an_evaluation_makes_nothing_twice(app: App) -> None:
    app.now = Conditions(celsius=30.0)
    hot = iter([50.0, 50.0])

    def on_view(view: View) -> None:
        if view.phase == "evaluating" and view.step == 0:
            app.now = Conditions(celsius=next(hot, 30.0))
        elif view.phase == "waiting":
            app.now = Conditions(celsius=30.0)

    with app.job() as job:
        job.start(app.request(steps=6, held_out=held_out(app), eval_every=2))
        phases = app.run(job, on_view)
        assert "waiting" in phases and phases[-1] == "done"
        assert [one.step for one in job.view.evaluations] == [0, 2, 4, 6]
        assert job.view.before is None and job.view.after is None  # nobody asked


def test_paused_it_goes_on_in_another_process_with_the_same_bytes(app: App, tmp_path: Path) -> None:
    with app.job() as job:
        job.start(app.request())
        job.pause()  # nothing runs
        phases = app.run(job, lambda view: job.pause() if view.step == 11 else None)
        assert (phases[-1], job.view.reason, job.view.step) == ("paused", "asked", 11)
        assert job.problem is None
    with app.job() as again:
        assert (again.view.phase, again.view.step, again.view.reason) == ("paused", 11, "asked")
        assert app.run(again)[-1] == "done"
        assert len(again.losses) == STEPS
    assert log(app.state()) == whole(app, tmp_path / "other")


@pytest.mark.parametrize(
    ("reason", "bad", "between", "good"),
    [
        ("heat", {"celsius": 42.5}, {"celsius": 41.0}, {"celsius": 39.0}),
        ("heat", {"heat": 2}, {"heat": 3}, {"heat": 1}),
        (
            "battery",
            {"battery": 0.19, "charging": False},
            {"battery": 0.1, "charging": False},
            {"charging": True, "battery": 0.19},
        ),
        ("disk", {"free_bytes": 199_000_000}, {"free_bytes": 0}, {"free_bytes": 200_000_000}),
    ],
)
def test_it_waits_for_the_device_and_goes_on(
    app: App,
    reason: str,
    bad: dict[str, object],
    between: dict[str, object],
    good: dict[str, object],
) -> None:
    sequence = iter([bad, between, between, good])

    def on_view(view: View) -> None:
        if view.phase == "training" and view.step == 5:
            app.now = Conditions(**next(sequence))  # type: ignore[arg-type]

    told: list[ZoExportError | None] = []
    with app.job() as job:
        job.start(app.request())

        def conditions() -> Conditions:
            if job.view.phase == "waiting":
                told.append(job.problem)
                app.now = Conditions(**next(sequence, good))  # type: ignore[arg-type]
            return app.now

        job.run(
            conditions=conditions,
            changed=lambda view: (app.seen.append(view), on_view(view))[0],
            limits=QUICK,
        )
        assert job.view.phase == "done"
    phases = [view.phase for view in app.seen]
    assert phases.count("waiting") == 1  # it did not flicker
    waiting = next(view for view in app.seen if view.phase == "waiting")
    assert (waiting.reason, waiting.step) == (reason, 6)
    assert all(problem is not None for problem in told)


@pytest.mark.parametrize("trained", [False, True])
def test_a_pause_ends_an_evaluation_and_it_is_made_whole_later(app: App, trained: bool) -> None:
    with app.job() as job:
        job.start(app.request(evaluate=True))

        def on_view(view: View) -> None:
            if view.phase == "evaluating" and (view.step == STEPS) == trained:
                job.pause("background")

        assert app.run(job, on_view)[-2:] == ["evaluating", "paused"]
        assert (job.view.reason, job.problem is not None) == ("background", True)
        assert (job.view.before is not None, job.view.after) == (trained, None)
    with app.job() as job:
        assert app.run(job)[-1] == "done"
        assert job.view.before is not None and job.view.after is not None
        assert job.view.before.examples == job.view.after.examples == 4


def test_an_evaluation_waits_for_the_device_and_goes_on_from_there(app: App) -> None:
    calls = 0
    engine = app.engine

    def counting(*given: Any) -> None:
        nonlocal calls
        calls += 1
        engine(*given)

    def on_view(view: View) -> None:
        if view.phase == "evaluating":
            app.now = Conditions(celsius=50.0 if view.part is None else 30.0)

    app.engine = counting  # type: ignore[assignment]
    with app.job() as job:
        job.start(app.request(steps=1, evaluate=True))

        def conditions() -> Conditions:
            now = app.now
            app.now = Conditions(celsius=30.0)
            return now

        phases: list[str] = []
        job.run(
            conditions=conditions,
            changed=lambda view: (on_view(view), phases.append(view.phase))[0],
            limits=QUICK,
        )
        with_waits = calls
        assert phases.count("waiting") == 2  # before and after
        job.start(app.request(steps=1, evaluate=True), "restart")
        calls = 0
        app.run(job)
        assert with_waits == calls  # nothing was evaluated twice


def test_a_pause_ends_the_reading_of_examples(app: App) -> None:
    with app.job() as job:
        job.start(app.request())

        def on_view(view: View) -> None:
            if view.phase == "preparing" and view.part is not None:
                assert 0 < view.part <= 1
                job.pause()

        assert app.run(job, on_view)[-1] == "paused"
        assert not (app.folder / "app" / "states").exists()
        assert app.run(job)[-1] == "done"


def test_a_start_that_reads_examples_can_be_ended(app: App) -> None:
    long = app.folder / "app" / "long.jsonl"
    long.write_text(app.data.read_text() * 20000)
    ended: list[Cancelled] = []

    def start(job: Job) -> None:
        try:
            job.start(app.request(data=long))
        except Cancelled as error:
            ended.append(error)

    for end in (Job.pause, Job.cancel):
        with app.job() as job:
            job.start(app.request(steps=3), "continue" if end is Job.cancel else "ask")
            thread = threading.Thread(target=start, args=(job,))
            thread.start()
            while thread.is_alive() and not ended and job.view.part is None:
                time.sleep(0.001)
            end(job)
            thread.join(60)
            assert len(ended) == 1 and "request to" in ended.pop().found
            kept = app.request(steps=3) if end is Job.pause else None
            assert job.requested == kept
        with app.job() as job:
            assert job.requested == kept


def test_little_memory_saves_and_ends_the_run(app: App) -> None:
    def on_view(view: View) -> None:
        if view.step == 7:
            app.now = Conditions(memory_bytes=99_000_000)

    with app.job() as job:
        job.start(app.request())
        assert app.run(job, on_view)[-1] == "paused"
        assert (job.view.reason, job.view.step) == ("memory", 8)
        problem = job.problem
        assert problem is not None and "99 MB" in str(problem) and "100 MB" in str(problem)
        app.now = Conditions()
        assert app.run(job)[-1] == "done"


@pytest.mark.parametrize("reason", ["memory", "background"])
def test_the_app_ends_the_run_for_a_reason(app: App, reason: str) -> None:
    with app.job() as job:
        job.start(app.request())
        app.run(job, lambda view: job.pause(reason) if view.step == 3 else None)  # type: ignore[arg-type]
        assert (job.view.phase, job.view.reason, job.view.step) == ("paused", reason, 3)
        assert job.problem is not None


def test_a_pause_ends_a_wait_at_once(app: App) -> None:
    app.now = Conditions(celsius=50.0)
    waiting = threading.Event()
    with app.job() as job:
        job.start(app.request())
        thread = threading.Thread(
            target=lambda: job.run(
                conditions=lambda: app.now,
                changed=lambda view: waiting.set() if view.phase == "waiting" else None,
                limits=Limits(poll_seconds=3600.0),
            )
        )
        thread.start()
        assert waiting.wait(30)
        job.pause()
        thread.join(30)
        assert not thread.is_alive()
        assert job.view.phase == "paused"
    assert not (app.folder / "app" / "states").exists()  # nothing was begun


def test_other_examples_with_an_old_state_are_a_question(app: App, tmp_path: Path) -> None:
    other = app.examples("other", [" up", " down"])
    with app.job() as job:
        job.start(app.request())
        app.run(job)
        before = log(app.state())
        with pytest.raises(QuestionError, match=f"found {STEPS} steps on 4 other examples"):
            job.start(app.request(steps=2 * STEPS, data=other))
        assert job.view.phase == "done"  # as it was
        with pytest.raises(QuestionError, match=f"fewer than the {STEPS}"):
            job.start(app.request())
        with pytest.raises(QuestionError, match="Ask for more steps"):
            job.start(app.request(), "continue")
        with pytest.raises(
            QuestionError, match=r"learning_rate 0\.\d+; expected steps with learning_rate 0\.25"
        ):
            job.start(app.request(steps=2 * STEPS, settings={"learning_rate": 0.25}))
        assert log(app.state()) == before

        job.start(app.request(steps=STEPS + 5), "ask")  # the same run, longer: nothing to ask
        job.start(app.request(steps=2 * STEPS, data=other), "continue")
        assert app.run(job)[-1] == "done"
        assert log(app.state())[: len(before)] == before
        changes = json.loads((app.state() / "run.json").read_text())["changes"]
        assert [change["key"] for change in changes] == ["data"]

        job.start(app.request(data=other), "restart")
        assert app.run(job)[-1] == "done"
    assert log(app.state()) == whole(app, tmp_path / "other", other)


def test_cancelled_it_is_idle_and_discard_removes_the_state(app: App) -> None:
    with app.job() as job:
        job.start(app.request())
        assert app.run(job, lambda view: job.cancel() if view.step == 4 else None)[-1] == "idle"
        assert job.requested is None
        assert not (app.folder / "app" / "job.json").exists()
        assert app.state().is_dir()
        job.start(app.request())  # the same run: it goes on
        refused: list[ZoExportError] = []

        def meddle(view: View) -> None:
            if view.step == 6 and not refused:
                for call in (job.discard, lambda: job.start(app.request()), job.run):
                    with pytest.raises(ConfigError, match="while it runs") as error:
                        call()
                    refused.append(error.value)

        app.run(job, meddle)
        assert len(refused) == 3 and job.view.phase == "done"
        job.discard()
        assert list((app.folder / "app" / "states").iterdir()) == []
        assert job.view.phase == "idle"


def test_the_folder_may_move(app: App, tmp_path: Path) -> None:
    with app.job() as job:
        job.start(app.request())
        app.run(job, lambda view: job.pause() if view.step == 5 else None)
    (tmp_path / "app").rename(tmp_path / "updated")
    with Job(tmp_path / "updated", engine=app.engine, cache="") as job:
        assert job.requested is not None
        assert job.requested.data == tmp_path / "updated" / "data.jsonl"
        assert app.run(job)[-1] == "done"


def test_what_cannot_be_used_changes_nothing(app: App) -> None:
    bad = app.folder / "bad.jsonl"
    bad.write_text('{"text": 1}\n')
    with app.job() as job:
        with pytest.raises(DataError, match=r"bad\.jsonl:1"):
            job.start(app.request(data=bad))
        with pytest.raises(ZoExportError, match="nothing"):
            job.start(app.request(bundle=app.folder / "nothing"))
        wrongs = (
            {"steps": 0},
            {"settings": {"learning_rate": "much"}},
            {"settings": {"learning_rate": -1.0}},
            {"patience": 2},
            {"keep": "best"},
        )
        for wrong in (*wrongs, {"held_out": held_out(app), "keep": "first"}):
            with pytest.raises(ConfigError):
                job.start(app.request(**wrong))  # type: ignore[arg-type]
        assert job.view.phase == "idle"
        job.start(app.request())
        app.data.write_text("{\n")
        with pytest.raises(DataError):
            app.run(job)
        assert job.view.phase == "failed" and isinstance(job.problem, DataError)
        assert not (app.folder / "app" / "states").exists()
        for limits in (Limits(cooled=50.0), Limits(battery=2.0), Limits(poll_seconds=0.0)):
            with pytest.raises(ConfigError, match="option '"):
                job.run(limits=limits)


def test_a_run_that_diverges_fails_and_can_be_begun_anew(app: App) -> None:
    def on_view(view: View) -> None:
        if view.step == 12:
            app.engine.worse = 1e6

    with app.job() as job:
        job.start(app.request(steps=100))
        with pytest.raises(DivergedError):
            app.run(job, on_view)
        assert job.view.phase == "failed"
        app.engine.worse = 0.0
        job.start(app.request(steps=20, settings={"learning_rate": 0.001}), "restart")
        assert app.run(job)[-1] == "done"


def test_a_damaged_request_is_said_and_replaced(app: App) -> None:
    with app.job() as job:
        job.start(app.request(steps=3))
    file = app.folder / "app" / "job.json"
    written = file.read_text()
    for damaged in ("", "{", written.replace('"steps": 3', '"steps": "x"'), "[]"):
        file.write_text(damaged)
        with app.job() as job:
            assert job.view.phase == "failed"
            assert isinstance(job.problem, StateError)
            job.start(app.request(steps=3))
            assert file.read_text() == written
    file.write_text(written.replace('"schema_version": 2', '"schema_version": 3'))
    with app.job() as job:
        assert "schema_version" in str(job.problem)


def test_a_removal_that_was_cut_short_is_finished(app: App) -> None:
    with app.job() as job:
        job.start(app.request(steps=3))
        app.run(job)
    leaving = app.state().with_suffix(".leaving")
    shutil.copytree(app.state(), leaving)
    with app.job():
        assert not leaving.exists()
        assert app.state().is_dir()


def test_an_exception_of_the_host_ends_the_run_saved(app: App) -> None:
    def on_view(view: View) -> None:
        if view.step == 9:
            raise KeyError("mine")

    with app.job() as job:
        job.start(app.request())
        with pytest.raises(KeyError, match="mine"):
            app.run(job, on_view)
        assert (job.view.phase, job.view.step) == ("paused", 9)


def test_the_engine_that_was_chosen_is_the_request_s(app: App) -> None:
    with app.job() as job:
        with pytest.raises(ConfigError, match="engine: found mlx; expected test"):
            job.start(app.request(engine="mlx"))
        assert job.requested is None
        asked = app.request(steps=3, engine="test")
        job.start(asked)
    with app.job() as again:
        assert again.requested == asked
        app.run(again)
        # None chosen is no other run.
        again.start(app.request(steps=5))
        assert again.requested == app.request(steps=5)
        assert app.run(again)[-1] == "done"


def test_a_session_of_the_job_has_what_was_trained(app: App) -> None:
    with app.job() as job:
        with pytest.raises(ConfigError, match="no bundle"):
            job.session()
        job.start(app.request(steps=4))
        with job.session() as session:
            assert session.info.steps == 0
        app.run(job)
        with job.session() as session:
            assert session.info.steps == 4


def test_points_stay_few_and_are_means(app: App) -> None:
    with app.job() as job:
        job.start(app.request(steps=900))
        app.run(job)
        points = job.losses
        with job.session() as session:
            losses = [session.record(step).loss for step in range(900)]
    assert 200 <= len(points) < 400
    assert points[-1][0] == 900 - 900 % (points[1][0] - points[0][0])
    each = points[0][0]
    for number, (step, loss) in enumerate(points):
        assert step == (number + 1) * each
        assert loss == pytest.approx(np.mean(losses[number * each : step]), rel=1e-6)
