"""Losses of pairs: their numbers, and the reference model's scores, computed once and kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import bundles, split_bundles
from tests.support.bundles import SLOT, LinearModel
from tests.support.sessions import make_dataset
from tests.support.split_bundles import SplitModel
from tests.support.text_cases import check_state
from zoexport.core import rng
from zoexport.core.errors import Cancelled, ConfigError, DataError, StateError
from zoexport.session import (
    Evaluation,
    OnPart,
    Session,
    StepEvaluation,
    Tensor,
    Validation,
    describe_state,
)

STEPS = 12
PAIRS = bundles.pair_examples(7)
HELD_OUT = [*PAIRS[::-1], *PAIRS[:2]]
BETA = 0.5


class Run:
    """Sessions over one bundle of a method of either kind, trained on pairs."""

    def __init__(self, folder: Path, method: str, loss: str = "dpo") -> None:
        self.folder, self.method = folder, method
        settings = {"batch_size": 2, "learning_rate": 0.05, "loss": loss, f"{loss}.beta": BETA}
        write = split_bundles.write_bundle if method == "mebp" else bundles.write_bundle
        self.bundle = write(folder / "bundle", settings=settings)
        self.engine: Any = None
        self.after: Callable[[Mapping[str, Tensor]], None] = lambda outputs: None

    def open(self) -> Session:
        self.engine = model = SplitModel() if self.method == "mebp" else LinearModel()

        def called(program: str, inputs: Any, outputs: Any) -> None:
            model(program, inputs, outputs)
            self.after(outputs)

        return Session.open(self.bundle, engine=called)

    def train(
        self,
        state: str,
        steps: int = STEPS,
        *,
        examples: list[Any] = PAIRS,
        held_out: list[Any] | None = None,
        stop_at: int | None = None,
        change_settings: bool = False,
        on_part: OnPart | None = None,
        **settings: Any,
    ) -> list[StepEvaluation]:
        with (
            self.open() as session,
            make_dataset(examples) as data,
            make_dataset(held_out or []) as test,
        ):
            session.attach(self.folder / state, change_settings=change_settings)
            session.configure(**settings)
            session.train(
                data,
                steps,
                lambda now: now.step == stop_at,
                validation=Validation(test, every=4) if held_out else None,
                on_part=on_part,
            )
            return session.evaluations

    def reference(self, state: str) -> Any:
        return json.loads((self.folder / state / "reference.json").read_text())


@pytest.fixture(params=["prge", "mebp"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return Run(tmp_path, request.param)


@pytest.mark.parametrize("loss", ["dpo", "orpo"])
@pytest.mark.parametrize("method", ["prge", "mezo"])
def test_losses_of_perturbed_copies(tmp_path: Path, loss: str, method: str) -> None:
    """Every loss of a step and the projected gradients, from the definitions; then what evaluation says."""
    path = bundles.write_bundle(tmp_path / "bundle", method=method, rows=3, max_labels=5)
    model = LinearModel()
    eps, learning_rate = 0.05, 0.5
    with make_dataset(PAIRS) as dataset, Session.open(path, engine=LinearModel()) as session:
        session.configure(loss=loss, eps=eps, learning_rate=learning_rate, **{f"{loss}.beta": BETA})
        for step in range(3):
            master = _array(session.read_slot(SLOT))
            indices = [step, 6, 2]
            found = session.step(dataset, indices)
            for number, value in enumerate(found.losses):
                z = rng.normals(7, bundles.TENSOR_ID, number // 2, step, master.size)
                sign = 1.0 if number % 2 == 0 else -1.0
                moved = master + sign * eps * z.reshape(master.shape)
                batch = [PAIRS[i] for i in indices]
                expected = bundles.evaluate(model, batch, moved, loss, BETA)["loss"]
                assert value == pytest.approx(expected, rel=1e-5)
            for query, gradient in enumerate(found.gradients):
                plus, minus = found.losses[2 * query : 2 * query + 2]
                assert gradient == pytest.approx((plus - minus) / (2 * eps), rel=1e-4, abs=1e-6)
        evaluation = session.evaluate(dataset)
        expected = bundles.evaluate(model, PAIRS, _array(session.read_slot(SLOT)), loss, BETA)
    for key in ("loss", "accuracy", "token_accuracy", "margin"):
        assert getattr(evaluation, key) == pytest.approx(expected[key], rel=1e-5), key


def _array(values: Any) -> bundles.Floats:
    return np.frombuffer(values, np.float32).reshape(bundles.RANK, bundles.VOCAB)


def test_nothing_is_preferred_at_first_and_something_after_training(run: Run) -> None:
    found = run.train("run", 60, held_out=PAIRS)
    first, last = found[0], found[-1]
    assert (first.margin, first.accuracy) == (0.0, 0.0)
    assert first.loss == pytest.approx(0.6931472, abs=1e-6)
    assert last.margin is not None and last.margin > 0.3
    assert last.accuracy is not None and last.accuracy >= 5 / 7
    assert last.loss < 0.6


def test_scores_are_computed_once_and_kept(run: Run) -> None:
    told: list[tuple[int, int]] = []
    run.train("run", held_out=HELD_OUT, on_part=lambda done, total: told.append((done, total)))
    kept = run.reference("run")
    digests = [one["data"]["sha256"] for one in kept["sets"]]
    assert [one["data"]["examples"] for one in kept["sets"]] == [7, 9]
    described = describe_state(run.folder / "run")
    assert digests == [described["data"]["sha256"], described["validation"]["data"]["sha256"]]
    assert described["settings"]["dpo.beta"] == BETA
    assert told[0] == (0, 7)
    assert {total for _, total in told} <= {7, 9}  # some twenty times a second
    # They are those of the bundle's own values, whatever was trained meanwhile.
    if run.method == "prge":
        values = bundles.initial_values()
        scores = kept["sets"][0]["scores"]
        for number, (candidates, _) in enumerate(PAIRS):
            for place, candidate in enumerate(candidates):
                mine = bundles.score(
                    LinearModel(), candidate, values[SLOT], values[bundles.FROZEN]
                )[0]
                assert scores[2 * number + place] == pytest.approx(mine, rel=1e-6)
    # A run that goes on computes none of them again.
    with pytest.raises(Cancelled):
        run.train("part", held_out=HELD_OUT, stop_at=5)
    calls = len(run.engine.calls)
    run.train("part", held_out=HELD_OUT)
    calls += len(run.engine.calls)
    run.train("whole", held_out=HELD_OUT)
    assert calls == len(run.engine.calls)
    check_state(run.folder / "part", run.folder / "whole")


def test_a_process_that_ends_before_the_first_step_keeps_them(run: Run) -> None:
    """What the engine does after the scores is as if the process had been killed there."""
    run.train("whole")
    whole = len(run.engine.calls)

    class Ended(Exception):
        pass

    def end_after_scores(_: Mapping[str, Tensor]) -> None:
        if (run.folder / "run" / "reference.json").exists():
            raise Ended

    run.after = end_after_scores
    with pytest.raises(Ended):
        run.train("run")
    first = len(run.engine.calls)
    before = (run.folder / "run" / "reference.json").read_bytes()
    run.after = lambda outputs: None
    run.train("run")
    # The call that ended the process is made again.
    assert len(run.engine.calls) == whole - (first - 1)
    assert (run.folder / "run" / "reference.json").read_bytes() == before
    check_state(run.folder / "run", run.folder / "whole")


def test_other_pairs_are_refused_and_nothing_is_computed(run: Run) -> None:
    run.train("run", 4)
    before = (run.folder / "run" / "reference.json").read_bytes()
    with pytest.raises(StateError, match=r"7 examples of digest .* expected 9 examples of"):
        run.train("run", examples=HELD_OUT)
    assert run.engine.calls == []
    assert (run.folder / "run" / "reference.json").read_bytes() == before
    run.train("run", examples=HELD_OUT, change_settings=True)
    (one,) = run.reference("run")["sets"]
    assert one["data"]["examples"] == 9
    assert one["data"]["sha256"] == describe_state(run.folder / "run")["data"]["sha256"]


def test_betas_are_the_runs(run: Run) -> None:
    run.train("run", 4)
    before = (run.folder / "run" / "reference.json").read_bytes()
    with pytest.raises(StateError, match=r"dpo\.beta 0\.5; expected dpo\.beta 0\.25"):
        run.train("run", **{"dpo.beta": 0.25})
    with pytest.raises(StateError, match="loss dpo; expected loss orpo"):
        run.train("run", loss="orpo")
    run.train("run", 6, change_settings=True, **{"dpo.beta": 0.25})
    # The scores do not depend on it.
    assert (run.folder / "run" / "reference.json").read_bytes() == before
    with run.open() as session:
        session.attach(run.folder / "run")
        assert (session.settings["loss"], session.settings["dpo.beta"]) == ("dpo", 0.25)
        for change in ({"dpo.beta": 0.0}, {"orpo.beta": -1.0}):
            name = next(iter(change))
            with pytest.raises(ConfigError, match=f"{name}': found .* above 0"):
                session.configure(**change)


def test_damaged_scores_are_one_message_and_come_again(run: Run, tmp_path: Path) -> None:
    run.train("run", 4)
    path = run.folder / "run" / "reference.json"
    text = path.read_text()
    content = json.loads(text)
    content["sets"][0]["scores"][3] -= 1
    for damaged in (json.dumps(content), text[:-9], "[]"):
        path.write_text(damaged)
        with pytest.raises(StateError, match=r"reference\.json.*remove it"):
            run.train("run", 6)
    path.unlink()
    run.train("run", 6)
    assert path.read_text() == text
    other = Run(tmp_path / "other", run.method)
    manifest = other.bundle / "manifest.json"
    assert json.loads(manifest.read_text())["bundle_id"] == content["bundle_id"]
    shutil.rmtree(other.bundle)
    write = split_bundles.write_bundle if run.method == "mebp" else bundles.write_bundle
    other.bundle = write(other.bundle, settings={"seed": 9, "loss": "dpo"})
    other.train("run", 4)
    shutil.copy(path, other.folder / "run" / "reference.json")
    with pytest.raises(StateError, match=r"reference\.json, bundle_id: found .* belongs to"):
        other.train("run", 6)


def test_scoring_can_be_ended(run: Run) -> None:
    with pytest.raises(Cancelled, match=f"step 0 of {STEPS}"):
        run.train("run", on_part=lambda done, total: True)
    assert not (run.folder / "run").exists()
    run.train("run")
    assert describe_state(run.folder / "run")["steps"] == STEPS


def test_a_score_that_is_not_finite_is_one_message(run: Run) -> None:
    def broken(outputs: Mapping[str, Tensor]) -> None:
        if "logprobs" in outputs:
            outputs["logprobs"].data[0] = float("-inf")

    run.after = broken
    with pytest.raises(DataError, match=r"example \d: found a score of the reference model"):
        run.train("run")
    assert not (run.folder / "run").exists()


@pytest.mark.parametrize("loss", ["dpo", "orpo"])
def test_what_is_no_pair_is_refused(tmp_path: Path, loss: str) -> None:
    run = Run(tmp_path, "prge", loss)
    three = bundles.choice_examples()[1]
    assert len(three[0]) == 3
    one = bundles.text_examples()[0]
    for bad, found in ((three, "3 candidates"), (one, "1 candidate;")):
        with pytest.raises(DataError, match=f"example 1: found {found}.*two, the chosen"):
            run.train("run", examples=[PAIRS[0], bad])
        with pytest.raises(DataError, match="example 0"):
            run.train("run", held_out=[bad])
    assert not (run.folder / "run").exists()
    if loss == "orpo":
        run.train("run")
        assert not (run.folder / "run" / "reference.json").exists()


def test_steps_of_the_hosts_choice_need_no_state(run: Run) -> None:
    """A step scores its own examples, and gives what training gives."""
    with run.open() as session, make_dataset(PAIRS) as data:
        session.train(data, 1)
        trained = session.record(0)
    with run.open() as session, make_dataset(PAIRS) as data:
        order = rng.permutation(session.info.seed, 0, len(PAIRS))
        session.attach(run.folder / "run")
        session.step(data, [int(i) for i in order[:2]])
        assert session.record(0).loss == pytest.approx(trained.loss, rel=1e-6)
        assert session.record(0).gradients == pytest.approx(trained.gradients, rel=1e-3, abs=1e-5)
        session.save()
    assert not (run.folder / "run" / "reference.json").exists()


def test_pairs_under_other_losses(tmp_path: Path) -> None:
    """The chosen answer alone, or a choice between the two."""
    path = bundles.write_bundle(tmp_path / "bundle")
    values = bundles.initial_values()[SLOT]
    with make_dataset(PAIRS) as data, Session.open(path, engine=LinearModel()) as session:
        for loss in ("full", "choices"):
            session.configure(loss=loss)
            found: Evaluation = session.evaluate(data)
            expected = bundles.evaluate(LinearModel(), PAIRS, values, loss)
            assert found.loss == pytest.approx(expected["loss"], rel=1e-6)
            assert (found.accuracy, found.margin) == (pytest.approx(expected["accuracy"]), None)
