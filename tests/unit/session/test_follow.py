"""Sessions that go on by another session's records (zo_session_follow): the same slots, log and state folder."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from tests.support import bundles, split_bundles
from tests.support.bundles import SLOT, LinearModel
from tests.support.sessions import open_session, state_bytes, values
from tests.unit.session.test_split_manifest import rewrite
from zoexport.core.errors import ConfigError, StateError
from zoexport.session import Dataset, Record, Session

SEED = 19


def refuses_to_run(*_: object) -> None:
    raise AssertionError("following runs no program")


def files_of(folder: Path) -> dict[str, bytes]:
    """All but the settings and data of a run that takes steps itself."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "run.json"}


def trained(bundle: Path, state: Path | None, dataset: Dataset, steps: int) -> list[Record]:
    with open_session(bundle, state, seed=SEED if state else None) as session:
        if state is None:
            session.configure(seed=SEED)
        session.train(dataset, steps)
        return [session.record(index) for index in range(steps)]


@pytest.mark.parametrize("method", ["prge", "mezo"])
@pytest.mark.parametrize("pieces", [[5], [1, 4], [2, 0, 3]])
def test_the_state_folder_is_the_one_of_training(
    tmp_path: Path, method: str, pieces: list[int], dataset: Dataset
) -> None:
    bundle = bundles.write_bundle(tmp_path / "bundle", method=method)
    records = trained(bundle, tmp_path / "trained", dataset, 5)
    with Session.open(bundle, engine=refuses_to_run) as session:
        session.attach(tmp_path / "followed", seed=SEED)
        for count in pieces:
            begin = session.info.steps
            session.follow(records[begin : begin + count])
        assert session.info.steps == 5
        followed = state_bytes(session)
    with open_session(bundle, tmp_path / "trained", read_only=True) as session:
        assert state_bytes(session) == followed
    if pieces == [5]:
        assert files_of(tmp_path / "followed") == files_of(tmp_path / "trained")
    log = (tmp_path / "followed" / "trajectory.log").read_bytes()
    assert log == (tmp_path / "trained" / "trajectory.log").read_bytes()


def test_snapshots_on_the_way_are_those_of_training(
    bundle: Path, tmp_path: Path, dataset: Dataset
) -> None:
    records = trained(bundle, tmp_path / "trained", dataset, 203)
    with open_session(bundle, tmp_path / "followed", seed=SEED) as session:
        session.follow(records)
    kept = files_of(tmp_path / "followed")
    assert {name for name in kept if name.startswith("snapshot")} == {
        "snapshot-199.safetensors",
        "snapshot-202.safetensors",
    }
    assert kept == files_of(tmp_path / "trained")


def test_training_goes_on_after_following(bundle: Path, dataset: Dataset) -> None:
    records = trained(bundle, None, dataset, 9)
    with open_session(bundle) as session:
        session.configure(seed=SEED)
        session.follow(records[:4])
        session.train(dataset, 9)
        assert [session.record(index) for index in range(9)] == records


def test_initial_values_that_were_written_are_followed_from(bundle: Path, dataset: Dataset) -> None:
    start = np.linspace(-1, 1, bundles.RANK * bundles.VOCAB, dtype=np.float32)
    with open_session(bundle) as session:
        session.write_slot(SLOT, start)
        session.configure(seed=SEED)
        session.train(dataset, 6)
        records = [session.record(index) for index in range(6)]
        expected = values(session).tobytes()
    with Session.open(bundle, engine=refuses_to_run) as session:
        session.write_slot(SLOT, start)
        session.configure(seed=SEED)
        session.follow(records)
        assert values(session).tobytes() == expected
        # And from the definitions, in numpy.
        b = start.reshape(bundles.RANK, bundles.VOCAB)
        for record in records:
            gradients = np.array(record.gradients, np.float32)
            b = bundles.zo_update(b, gradients, record.learning_rate, SEED, record.step + 1)
        np.testing.assert_allclose(values(session), b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"step": 2}, "the record of step 2"),
        ({"loss": math.nan}, "a loss that is not finite"),
        ({"gradients": (1.0, math.inf)}, "a projected gradient that is not finite"),
        ({"learning_rate": math.inf}, "learning_rate inf"),
        ({"learning_rate": -1.0}, "learning_rate -1"),
        ({"eps": 0.0}, "eps 0"),
    ],
)
def test_records_that_training_cannot_have_made(
    bundle: Path, dataset: Dataset, tmp_path: Path, change: dict[str, object], found: str
) -> None:
    records = trained(bundle, None, dataset, 3)
    records[1] = dataclasses.replace(records[1], **change)  # type: ignore[arg-type]
    with open_session(bundle, tmp_path / "state", seed=SEED) as session:
        before = files_of(tmp_path / "state")
        with pytest.raises(ConfigError, match=found):
            session.follow(records)
        assert session.info.steps == 0
        assert files_of(tmp_path / "state") == before


def test_a_run_that_divergence_would_have_stopped(bundle: Path, dataset: Dataset) -> None:
    records = trained(bundle, None, dataset, 12)
    records[6:] = [dataclasses.replace(record, loss=1e3) for record in records[6:]]
    with open_session(bundle) as session, pytest.raises(ConfigError, match="above the limit"):
        session.follow(records)


def test_another_number_of_gradients(bundle: Path, dataset: Dataset) -> None:
    records = trained(bundle, None, dataset, 1)
    records = [dataclasses.replace(records[0], gradients=(1.0,))]
    with open_session(bundle) as session, pytest.raises(ConfigError, match="1 projected gradients"):
        session.follow(records)


def test_a_state_for_reading_is_not_followed_into(
    bundle: Path, tmp_path: Path, dataset: Dataset
) -> None:
    records = trained(bundle, tmp_path / "state", dataset, 2)
    more = dataclasses.replace(records[1], step=2)
    with (
        open_session(bundle, tmp_path / "state", read_only=True) as session,
        pytest.raises(StateError, match="attached for reading"),
    ):
        session.follow([more])


def test_first_order_records_do_not_tell(tmp_path: Path) -> None:
    bundle = split_bundles.write_bundle(tmp_path / "bundle")
    with (
        Session.open(bundle, engine=refuses_to_run) as session,
        pytest.raises(ConfigError, match="first-order method"),
    ):
        session.follow([Record(0, 1e-3, 1e-2, 1.0, ())])


def test_forward_differences_share_one_loss(tmp_path: Path, dataset: Dataset) -> None:
    bundle = bundles.write_bundle(tmp_path / "bundle", method="mezo")
    model = LinearModel()
    with Session.open(bundle, engine=model) as session:
        session.configure(difference="forward")
        assert session.settings["difference"] == "forward"
        first = session.step(dataset, [0])
        calls = [given for program, given in model.calls if program == "train"]
        assert [float(given["epsilon"][0]) for given in calls] == pytest.approx([0.0, 1e-2, 1e-2])
        assert [int(given["query"][0]) for given in calls] == [0, 0, 1]
        assert all(float(given["sign"][0]) == 1 for given in calls)
        eps = float(np.float32(1e-2))
        for query in range(2):
            slope = (first.losses[query + 1] - first.losses[0]) / eps
            assert first.gradients[query] == np.float32(slope)
        unperturbed = session_loss(bundle, dataset, 0)
        assert first.losses[0] == pytest.approx(unperturbed, rel=1e-12)
        assert first.loss == pytest.approx(np.mean(first.losses), rel=1e-12)


def session_loss(bundle: Path, dataset: Dataset, index: int) -> float:
    """The loss of one example, from the model's own definition."""
    candidates, target = bundles.text_examples()[index]
    start = bundles.initial_values()
    total, count, _ = bundles.score(
        LinearModel(), candidates[target], start[SLOT], start[bundles.FROZEN]
    )
    return -total / count


def test_forward_differences_need_single_copies(bundle: Path, tmp_path: Path) -> None:
    with (
        open_session(bundle) as session,
        pytest.raises(ConfigError, match="one copy through the model at a time"),
    ):
        session.configure(difference="forward")
    altered = bundles.write_bundle(tmp_path / "altered", settings={"difference": "forward"})
    with pytest.raises(Exception, match="copies: found 4; expected 3"):
        open_session(altered)
    wrong = bundles.write_bundle(tmp_path / "wrong")
    rewrite(wrong, lambda manifest: manifest["settings"].update(difference="backward"))
    with pytest.raises(Exception, match="central or forward"):
        open_session(wrong)
