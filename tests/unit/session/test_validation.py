"""Held-out examples while training: when they are evaluated, the best values, patience, resuming, what is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import bundles, split_bundles
from tests.support.split_bundles import SplitModel
from zoexport.core.errors import Cancelled, ConfigError, DivergedError, StateError
from zoexport.session import (
    Dataset,
    OnPart,
    Session,
    StepEvaluation,
    Validation,
    describe_state,
)

STEPS = 30


class Run:
    """Sessions over one bundle, of a method of either kind, whose held-out loss falls and then rises."""

    def __init__(self, folder: Path, method: str) -> None:
        self.folder = folder
        settings = (
            {"batch_size": 2, "learning_rate": 0.3}
            if method == "mebp"
            else {"learning_rate": 0.5, "batch_size": 2}
        )
        if method == "mebp":
            self.bundle = split_bundles.write_bundle(folder / "bundle", settings=settings)
        else:
            self.bundle = bundles.write_bundle(folder / "bundle", num_queries=4, settings=settings)
        self.method = method
        # Half of what is held out says otherwise than what is trained on: the more certain, the worse.
        self.data = [([1, 2], [3, -100]), ([4, 1], [-100, 3])]
        self.held_out = [([1, 2], [label, -100]) for label in (3, 3, 5)]

    def dataset(self, examples: list[tuple[list[int], list[int]]]) -> Dataset:
        made = Dataset()
        for example in examples:
            made.add([example])
        return made

    def open(self) -> Session:
        return Session.open(
            self.bundle,
            engine=SplitModel() if self.method == "mebp" else bundles.LinearModel(),
        )

    def train(
        self,
        state: str,
        steps: int = STEPS,
        *,
        stop_at: int | None = None,
        held_out: bool = True,
        change_settings: bool = False,
        on_part: OnPart | None = None,
        **options: Any,
    ) -> list[StepEvaluation]:
        with (
            self.open() as session,
            self.dataset(self.data) as data,
            self.dataset(self.held_out) as test,
        ):
            session.attach(self.folder / state, change_settings=change_settings)
            session.train(
                data,
                steps,
                lambda now: now.step == stop_at,
                validation=Validation(test, **options) if held_out else None,
                on_part=on_part,
            )
            return session.evaluations

    def values(self, state: str, *, last: bool = False) -> tuple[int, bytes]:
        """Steps and finished values of a state that is read."""
        with self.open() as session:
            session.attach(self.folder / state, read_only=True, last=last)
            slots = [slot.name for slot in session.slots()]
            return session.info.steps, b"".join(session.read_slot(name).tobytes() for name in slots)

    def loss_of(self, state: str) -> float:
        with self.open() as session, self.dataset(self.held_out) as test:
            session.attach(self.folder / state, read_only=True)
            return session.evaluate(test).loss

    def file(self, state: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / state / "evaluations.json").read_text())
        return found


@pytest.fixture(params=["prge", "mebp"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return Run(tmp_path, request.param)


def test_what_is_evaluated_when_and_what_is_read_afterwards(run: Run) -> None:
    seen: list[StepEvaluation] = []
    parts: list[tuple[int, int]] = []
    found = run.train(
        "run",
        every=4,
        on_evaluated=lambda one: seen.append(one),
        on_part=lambda done, total: parts.append((done, total)),
    )
    assert [one.step for one in found] == [0, 4, 8, 12, 16, 20, 24, 28, 30]
    assert [one.step for one in seen] == [one.step for one in found]
    assert {total for _, total in parts} == {3}
    best = min(found[1:], key=lambda one: one.loss)
    assert best.step < STEPS, "the run should get worse again"
    assert [one.step for one in found if one.best] == [best.step]
    # So far the best: losses below all before.
    lowest = [
        one.step
        for number, one in enumerate(seen)
        if one.step and one.loss < min([other.loss for other in seen[1:number]], default=np.inf)
    ]
    assert [one.step for one in seen if one.best] == lowest
    # Each is what a run of so many steps says of itself.
    for one in found[1:]:
        if one.step in (4, best.step):
            run.train(f"short-{one.step}", one.step, held_out=False)
            assert run.loss_of(f"short-{one.step}") == one.loss
    assert run.values("run") == run.values(f"short-{best.step}")
    assert run.loss_of("run") == best.loss
    steps, values = run.values("run", last=True)
    assert steps == STEPS and values != run.values("run")[1]
    run.train("plain", held_out=False)
    assert run.values("plain")[1] == values  # evaluating changes nothing
    logs = [(run.folder / state / "trajectory.log").read_bytes() for state in ("run", "plain")]
    assert logs[0] == logs[1]
    described = describe_state(run.folder / "run")["validation"]
    assert described["best_step"] == best.step and len(described["evaluations"]) == len(found)


def test_the_last_values_where_the_run_keeps_them(run: Run) -> None:
    run.train("run", every=4, keep="last")
    assert run.values("run") == run.values("run", last=True)
    assert run.values("run")[0] == STEPS


def test_the_number_of_evaluations_nobody_asks_for(run: Run) -> None:
    assert [one.step for one in run.train("run")] == list(range(0, STEPS + 1, 3))
    assert [one.step for one in run.train("few", 4)] == [0, 1, 2, 3, 4]


def test_patience_ends_a_run_once_and_for_all(run: Run) -> None:
    whole = run.train("whole", every=2)
    best = min(whole[1:], key=lambda one: one.loss)
    found = run.train("run", every=2, patience=2)
    # The first time that two evaluations in a row are no better than one before.
    steps = [one.step for one in found]
    assert steps[-1] < STEPS and found[:-1] == whole[: len(found) - 1]
    end = steps.index(max(one.step for one in found if one.best)) + 2
    assert len(found) == end + 1
    assert best.loss <= min(one.loss for one in found[1:])
    log = (run.folder / "run" / "trajectory.log").read_bytes()
    assert run.train("run") == found  # what the run has is kept: patience is over
    assert (run.folder / "run" / "trajectory.log").read_bytes() == log
    again = run.train("run", patience=50, change_settings=True)
    assert again[-1].step == STEPS


@pytest.mark.parametrize("stop_at", [1, 8, 9, 27])
def test_a_run_that_goes_on_is_the_run_that_never_stopped(run: Run, stop_at: int) -> None:
    run.train("whole", every=4, patience=9)
    with pytest.raises(Cancelled):
        run.train("run", every=4, patience=9, stop_at=stop_at)
    run.train("run")
    for name in ("evaluations.json", "trajectory.log"):
        first, second = (run.folder / state / name for state in ("whole", "run"))
        assert first.read_bytes() == second.read_bytes(), name
    assert run.values("run") == run.values("whole")
    assert run.values("run", last=True) == run.values("whole", last=True)


@pytest.mark.parametrize("number", [0, 2])
def test_an_evaluation_that_was_ended_is_made_before_the_next_step(run: Run, number: int) -> None:
    run.train("whole", every=4)

    seen: list[int] = []

    def keep(one: StepEvaluation) -> None:
        seen.append(one.step)
        time.sleep(0.06)  # so that the next evaluation tells of its first part

    with pytest.raises(Cancelled):
        run.train("run", every=4, on_evaluated=keep, on_part=lambda *_: len(seen) == number)
    assert len(run.file("run")["evaluations"] if number else []) == number
    run.train("run", every=4)
    assert run.file("run") == run.file("whole")


def test_a_callback_ends_the_run_and_its_exception_is_raised(run: Run) -> None:
    with pytest.raises(Cancelled):
        run.train("run", every=4, on_evaluated=lambda one: one.step == 8)
    assert run.values("run", last=True)[0] == 8

    def fails(one: StepEvaluation) -> None:
        raise KeyError(one.step)

    with pytest.raises(KeyError, match="12"):
        run.train("run", on_evaluated=fails)


def test_the_best_snapshot_outlives_the_newest_two(run: Run) -> None:
    best = run.train("run", 220, every=4)
    step = next(one.step for one in best if one.best)
    assert step < 100
    kept = step if run.method == "mebp" else step - 1
    names = {path.name for path in (run.folder / "run").glob("snapshot-*")}
    assert f"snapshot-{kept}.safetensors" in names and len(names) == 3
    run.train("short", step, held_out=False)
    assert run.values("run") == run.values("short")


def test_what_differs_from_the_run_is_refused_unless_it_is_asked_for(run: Run) -> None:
    run.train("run", 8, every=4, patience=3)
    before = run.file("run")

    def refused(**options: Any) -> str:
        with pytest.raises(StateError) as error:
            run.train("run", 12, **options)
        assert run.file("run") == before
        return str(error.value)

    assert "3 held-out examples" in refused(held_out=False)
    assert "every 4 steps" in refused(every=2) and "every 2 steps" in refused(every=2)
    assert "patience 3" in refused(patience=4)
    assert "keep best" in refused(keep="last")
    run.held_out.append(([1], [6]))
    assert "of digest" in refused()
    found = run.train("run", 12, change_settings=True)
    assert [one.step for one in found] == [8, 12]  # losses of other examples say nothing of these
    run.train("run", 14, held_out=False, change_settings=True)
    assert [one["step"] for one in run.file("run")["evaluations"]] == [8, 12]


def test_numbers_that_are_none(run: Run) -> None:
    for options in ({"every": 0}, {"patience": -1}, {"keep": "first"}):
        with pytest.raises(ConfigError):
            run.train("run", **options)
    run.train("ok", 2)
    with run.open() as session, run.dataset(run.data) as data, run.dataset(run.held_out) as test:
        session.attach(run.folder / "ok", read_only=True)
        with pytest.raises(StateError, match="attached for reading"):
            session.train(data, 4, validation=Validation(test))


def test_a_damaged_file_is_one_message_and_loses_no_step(run: Run) -> None:
    run.train("run", 8, every=4)
    path = run.folder / "run" / "evaluations.json"
    text = path.read_text()
    for damaged in (text.replace('"step": 4', '"step": 5'), text[:-9], "[]"):
        path.write_text(damaged)
        with pytest.raises(StateError, match=r"evaluations\.json") as error:
            run.train("run", 12)
        assert "remove it" in str(error.value)
    path.unlink()
    assert [one.step for one in run.train("run", 12, every=4)] == [8, 12]


def test_a_run_that_diverged_forgets_evaluations_of_steps_that_it_gave_up(run: Run) -> None:
    run.train("run", 8, every=2)
    with (
        run.open() as session,
        run.dataset(run.data) as data,
        run.dataset(run.held_out) as test,
    ):
        session.attach(run.folder / "run", change_settings=True)
        session.configure(learning_rate=1e38)
        with pytest.raises(DivergedError):
            session.train(data, 40, validation=Validation(test))
    with run.open() as session:
        session.attach(run.folder / "run", read_only=True, last=True)
        steps = session.info.steps
        assert all(one.step <= steps for one in session.evaluations)


def test_without_a_state_patience_holds_and_nothing_is_kept(run: Run) -> None:
    with (
        run.open() as session,
        run.dataset(run.data) as data,
        run.dataset(run.held_out) as test,
    ):
        session.train(data, STEPS, validation=Validation(test, every=2, patience=2))
        assert session.info.steps < STEPS
        assert session.evaluations[-1].step == session.info.steps
