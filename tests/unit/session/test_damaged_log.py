"""Logs that something other than an abrupt end has damaged, and snapshots of another run's steps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import split_bundles
from tests.support.sessions import open_session, state_bytes
from tests.support.split_bundles import SplitModel
from zoexport.core.errors import StateError
from zoexport.session import Dataset, Session, describe_state

HEADER, RECORD, STEPS = 64, 28, 9
LOG = "trajectory.log"
COPY = LOG + ".damaged-1"


def train(bundle: Path, state: Path, dataset: Dataset, steps: int, **settings: float) -> bytes:
    with open_session(bundle, state) as session:
        session.configure(**settings)
        session.train(dataset, steps)
        return state_bytes(session)


def files_of(state: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in state.iterdir() if path.name != "lock"}


def flip(state: Path, byte: int) -> bytes:
    """Alter one byte of the log, and give the log as it is then."""
    content = bytearray((state / LOG).read_bytes())
    content[byte] ^= 4
    (state / LOG).write_bytes(content)
    return bytes(content)


@pytest.fixture
def state(bundle: Path, tmp_path: Path, dataset: Dataset) -> Path:
    train(bundle, tmp_path / "state", dataset, STEPS)
    return tmp_path / "state"


@pytest.mark.parametrize("record", [0, 4, STEPS - 2])
def test_whole_records_behind_a_bad_one_are_not_given_up(
    bundle: Path, state: Path, dataset: Dataset, record: int
) -> None:
    with open_session(bundle) as session:
        session.train(dataset, STEPS + 3)
        undisturbed = state_bytes(session)
    damaged = flip(state, HEADER + record * RECORD + 9)
    before = files_of(state)
    for read_only in (True, False):
        with pytest.raises(StateError, match=f"damage after {record} good records") as caught:
            open_session(bundle, state, read_only=read_only)
        assert "recover=True" in str(caught.value)
        assert files_of(state) == before | ({} if read_only else {COPY: damaged})
    assert str(state / COPY) in str(caught.value)
    assert describe_state(state)["damage"].startswith(f"damage after {record} good records, and ")
    # Refused again, it needs no second copy.
    with pytest.raises(StateError, match=COPY):
        open_session(bundle, state)
    with open_session(bundle) as session:
        session.attach(state, recover=True)
        assert session.info.steps == record
        session.train(dataset, STEPS + 3)
        assert state_bytes(session) == undisturbed
    assert (state / COPY).read_bytes() == damaged and not (state / (LOG + ".damaged-2")).exists()
    with open_session(bundle, state, read_only=True) as session:
        assert state_bytes(session) == undisturbed


def test_a_damaged_header_costs_no_step(bundle: Path, state: Path, dataset: Dataset) -> None:
    good = (state / LOG).read_bytes()
    for byte in (0, 7, 20, 45, 50, 63):
        (state / LOG).write_bytes(good)
        damaged = flip(state, byte)
        with pytest.raises(StateError, match=f"a damaged header before {STEPS} good records"):
            open_session(bundle, state)
        with open_session(bundle) as session:
            session.attach(state, recover=True)
            assert session.info.steps == STEPS
        assert (state / LOG).read_bytes() == good
        assert damaged in files_of(state).values()
    (state / LOG).write_bytes(good[:50])
    with pytest.raises(StateError, match="a damaged header before 0 good records"):
        open_session(bundle, state)
    with open_session(bundle) as session:
        session.attach(state, recover=True)
        session.train(dataset, STEPS)
    assert (state / LOG).read_bytes() == good


def test_a_first_order_run_recovers_to_a_snapshot(tmp_path: Path, dataset: Dataset) -> None:
    bundle, state, record = split_bundles.write_bundle(tmp_path / "bundle"), tmp_path / "state", 20

    def session_of(folder: Path | None = None) -> Session:
        session = Session.open(bundle, engine=SplitModel())
        if folder is not None:
            session.attach(folder)
        return session

    for steps in (3, 6):
        with session_of(state) as session:
            session.train(dataset, steps)
    flip(state, HEADER + 4 * record + 1)
    with pytest.raises(StateError, match="damage after 4 good records, and 1 whole ones"):
        session_of(state)
    with session_of() as session, session_of() as other:
        session.attach(state, recover=True)
        assert session.info.steps == 3
        session.train(dataset, 8)
        other.train(dataset, 8)
        assert [session.record(i) for i in range(8)] == [other.record(i) for i in range(8)]
    assert sorted(path.name for path in state.glob("snapshot-*")) == [
        "snapshot-3.safetensors",
        "snapshot-8.safetensors",
    ]


def test_a_snapshot_of_another_branch_is_passed_over(
    bundle: Path, tmp_path: Path, dataset: Dataset
) -> None:
    """Its steps, bundle and CRC are right; the log is that of another learning rate."""
    first, second = tmp_path / "first", tmp_path / "second"
    train(bundle, first, dataset, STEPS)
    expected = train(bundle, second, dataset, STEPS, learning_rate=0.25)
    for snapshot in second.glob("snapshot-*"):
        snapshot.unlink()
    for snapshot in first.glob("snapshot-*"):
        shutil.copy(snapshot, second)
    for read_only in (True, False):
        with open_session(bundle, second, read_only=read_only) as session:
            assert state_bytes(session) == expected


def test_snapshots_beyond_the_log_go(bundle: Path, state: Path, dataset: Dataset) -> None:
    (snapshot,) = state.glob("snapshot-*")
    foreign = state / "snapshot-777.safetensors"
    foreign.write_bytes(b"what another tool calls so")
    (state / LOG).write_bytes((state / LOG).read_bytes()[: HEADER + 3 * RECORD])
    open_session(bundle, state, read_only=True).close()
    assert snapshot.exists()
    open_session(bundle, state).close()
    assert not snapshot.exists() and foreign.exists()


def test_only_files_of_the_session_are_leftovers(bundle: Path, state: Path) -> None:
    own = {
        "state.json.tmp",
        "run.json.tmp",
        "trajectory.log.tmp",
        "trajectory.log.damaged-3.tmp",
        "initial.safetensors.tmp",
        "snapshot-100.safetensors.tmp",
        "zoexport-a1B2c3.tmp",
    }
    others = {
        "notes.tmp",
        "snapshot-.safetensors.tmp",
        "snapshot-007.safetensors.tmp",
        "snapshot-100.tmp",
        "zoexport-a1B2c3d.tmp",
        "zoexport-results.tmp",
        ".tmp",
        "state.json.tmp.tmp",
    }
    for name in own | others:
        (state / name).write_text("x")
    open_session(bundle, state, read_only=True).close()
    assert own <= files_of(state).keys()
    open_session(bundle, state).close()
    assert not own & files_of(state).keys()
    assert others <= files_of(state).keys()
