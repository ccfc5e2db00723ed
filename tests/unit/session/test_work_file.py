"""States of first-order runs: killed, rebooted, copied, read while they train, on a full disk."""

from __future__ import annotations

import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support import bundles, split_bundles
from tests.support.sessions import make_dataset
from tests.support.split_bundles import SplitModel
from zoexport.core.errors import DivergedError, StateError
from zoexport.session import Dataset, Session

ROOT = Path(__file__).parents[3]
SLOTS = [n for n, (role, _) in split_bundles.slots().items() if role == "trainable"]
FLOATS = sum(int(np.prod(split_bundles.slots()[name][1])) for name in SLOTS)
RECORD = 20
#: Where work.bin has its boot id, and the steps of its two copies.
BOOT_ID, STEPS = 8 + 64, 8 + 64 + 64 + 3 * 8


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return split_bundles.write_bundle(tmp_path / "bundle")


@pytest.fixture
def dataset() -> Iterator[Dataset]:
    with make_dataset(bundles.text_examples()) as made:
        yield made


def open_session(
    bundle: Path, state: Path | None = None, *, read_only: bool = False, fail: int | None = None
) -> Session:
    session = Session.open(bundle, engine=SplitModel(fail))
    if state is not None:
        session.attach(state, read_only=read_only)
    return session


def content(session: Session) -> bytes:
    values = b"".join(session.read_slot(name).tobytes() for name in SLOTS)
    return values + repr([session.record(i) for i in range(session.info.steps)]).encode()


def run(bundle: Path, dataset: Dataset, steps: int, state: Path | None = None) -> bytes:
    with open_session(bundle, state) as session:
        session.train(dataset, steps)
        return content(session)


def steps_alone(session: Session, dataset: Dataset, first: int, last: int) -> None:
    """What train does, without its save at the end: an abrupt end leaves this."""
    from zoexport.core import rng

    order = [int(i) for e in range(9) for i in rng.permutation(7, e, len(dataset))]
    for step in range(first, last):
        session.step(dataset, order[2 * step : 2 * step + 2])


def alter(state: Path, offset: int, data: bytes) -> None:
    with (state / "work.bin").open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_a_new_state(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    run(bundle, dataset, 3, state)
    names = sorted(path.name for path in state.iterdir())
    others = ["snapshot-3.safetensors", "state.json", "trajectory.log", "work.bin"]
    assert names == ["lock", "run.json", *others]
    assert (state / "trajectory.log").stat().st_size == 64 + 3 * RECORD
    assert (state / "work.bin").stat().st_size == 4096 + 2 * 3 * FLOATS * 4
    snapshot = bundles.read_safetensors(state / "snapshot-3.safetensors")
    moments = {f"optimizer.{k}.{name}" for k in (0, 1) for name in SLOTS}
    assert set(snapshot) == moments | set(SLOTS)


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_what_a_process_left_is_resumed(
    bundle: Path, tmp_path: Path, dataset: Dataset, stop: int
) -> None:
    state = tmp_path / "state"
    with open_session(bundle, state) as session:
        steps_alone(session, dataset, 0, stop)
    assert not list(state.glob("snapshot-*"))
    with open_session(bundle, state) as session:
        assert session.info.steps == stop
        session.train(dataset, 8)
        assert content(session) == run(bundle, dataset, 8)


def test_killed_again_and_again(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    code = f"""
from pathlib import Path
from tests.unit.session.test_work_file import bundles, make_dataset, open_session
dataset = make_dataset(bundles.text_examples())
with open_session(Path({str(bundle)!r}), Path({str(state)!r})) as session:
    print("begins", session.info.steps, flush=True)
    session.train(dataset, 60, lambda p: print(p.step, flush=True))
"""
    reached = 0
    for after in (1, 2, 19):
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert child.stdout is not None
        assert child.stdout.readline().split() == ["begins", str(reached)]
        for line in child.stdout:
            if int(line) >= after:
                break
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
        child.wait()
        child.stdout.close()
        reached = int(rest[-1]) if rest else int(line)
        with open_session(bundle, state, read_only=True) as session:
            # The step that ran may have reached the log before it was reported.
            assert reached <= session.info.steps <= reached + 1
            reached = session.info.steps
    assert not list(state.glob("*.tmp"))
    assert run(bundle, dataset, 60, state) == run(bundle, dataset, 60)


@pytest.mark.parametrize("at", [0, BOOT_ID, 40])
def test_after_a_restart_of_the_system(
    bundle: Path, tmp_path: Path, dataset: Dataset, at: int
) -> None:
    """A header of another boot, another bundle or none at all: snapshots count."""
    state = tmp_path / "state"
    with open_session(bundle, state) as session:
        session.train(dataset, 4)
        steps_alone(session, dataset, 4, 6)
    alter(state, at, b"\xff")
    log = (state / "trajectory.log").read_bytes()
    with open_session(bundle, state, read_only=True) as session:
        assert session.info.steps == 4
        assert content(session) == run(bundle, dataset, 4)
    assert (state / "trajectory.log").read_bytes() == log
    with open_session(bundle, state) as session:
        assert session.info.steps == 4
        session.train(dataset, 8)
        assert content(session) == run(bundle, dataset, 8)


def test_without_a_snapshot_it_begins_anew(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    with open_session(bundle, state) as session:
        steps_alone(session, dataset, 0, 3)
    (state / "work.bin").unlink()
    with open_session(bundle, state, read_only=True) as session:
        assert session.info.steps == 0
    assert run(bundle, dataset, 5, state) == run(bundle, dataset, 5)


def test_a_copied_folder_is_not_trusted(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    with open_session(bundle, state) as session:
        session.train(dataset, 4)
        steps_alone(session, dataset, 4, 6)
        shutil.copytree(state, copy)
    with open_session(bundle, copy) as session:
        assert session.info.steps == 4
    with open_session(bundle, state) as session:
        assert session.info.steps == 6


def test_a_shorter_log_is_not_mistaken(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    run(bundle, dataset, 4, state)
    with open_session(bundle, state) as session:
        steps_alone(session, dataset, 4, 9)
    log = (state / "trajectory.log").read_bytes()
    # A torn last record only loses its step: the copy before it is still there.
    (state / "trajectory.log").write_bytes(log[:-1])
    with open_session(bundle, state, read_only=True) as session:
        assert session.info.steps == 8
    (state / "trajectory.log").write_bytes(log[: -2 * RECORD])
    with open_session(bundle, state) as session:
        assert session.info.steps == 4
    assert run(bundle, dataset, 9, state) == run(bundle, dataset, 9)


def test_a_creation_that_was_cut_short(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    with open_session(bundle, state) as session:
        steps_alone(session, dataset, 0, 1)
    for size in (0, 100, 4096, 5000):
        (state / "work.bin").write_bytes(bytes(size))
        (state / "trajectory.log").write_bytes((state / "trajectory.log").read_bytes()[:64])
        with open_session(bundle, state) as session:
            assert session.info.steps == 0
            steps_alone(session, dataset, 0, 1)


def test_reading_beside_the_process_that_trains(
    bundle: Path, tmp_path: Path, dataset: Dataset
) -> None:
    state = tmp_path / "state"
    with open_session(bundle, state) as session:
        for step in range(4):
            steps_alone(session, dataset, step, step + 1)
            before = {path.name: path.read_bytes() for path in state.iterdir()}
            with open_session(bundle, state, read_only=True) as reader:
                assert content(reader) == content(session)
                assert reader.evaluate(dataset) == session.evaluate(dataset)
                with pytest.raises(StateError, match="attached for reading"):
                    reader.step(dataset, [0])
            assert {path.name: path.read_bytes() for path in state.iterdir()} == before
        with pytest.raises(StateError, match="another training run"):
            open_session(bundle, state)


def test_a_failing_engine_leaves_the_state(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    whole = run(bundle, dataset, 3)
    # The last calls of the third step: every stage but the first was updated already.
    calls = SplitModel()
    with Session.open(bundle, engine=calls) as session:
        steps_alone(session, dataset, 0, 3)
    with open_session(bundle, state, fail=len(calls.calls) - 1) as session:
        with pytest.raises(RuntimeError, match="the device is gone"):
            steps_alone(session, dataset, 0, 3)
        assert content(session) == run(bundle, dataset, 2)
    with open_session(bundle, state, read_only=True) as session:
        assert content(session) == run(bundle, dataset, 2)
    assert run(bundle, dataset, 3, state) == whole


def test_imported_adapter(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    values = np.linspace(-1, 1, split_bundles.HIDDEN * split_bundles.RANK, dtype=np.float32)
    with open_session(bundle, state) as session:
        session.write_slot("lora_B.0", values)
        # Never saved: as if the import had been cut short.
    with open_session(bundle, state) as session:
        assert session.read_slot("lora_B.0").tobytes() != values.tobytes()
        session.write_slot("lora_B.0", values)
        session.write_slot("lora_A.1", values)
        steps_alone(session, dataset, 0, 2)
        whole = content(session)
    for read_only in (True, False):
        with open_session(bundle, state, read_only=read_only) as session:
            assert content(session) == whole
            assert session.read_slot("lora_A.1").tobytes() == values.tobytes()
    (state / "work.bin").unlink()
    with open_session(bundle, state) as session:
        assert session.info.steps == 0
        assert session.read_slot("lora_B.0").tobytes() == values.tobytes()
        steps_alone(session, dataset, 0, 2)
        assert content(session) == whole


class Diverging(SplitModel):
    """Scores one step's labels badly from some call on."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value: float | None = None
        self.bad = value

    def __call__(self, program: str, inputs: object, outputs: object) -> None:
        super().__call__(program, inputs, outputs)
        if self.value is not None and "logprobs" in outputs:
            data = outputs["logprobs"].data
            for i in range(len(data)):
                data[i] = self.value


@pytest.mark.parametrize(("value", "kept"), [(float("nan"), 5), (-1e4, 4)])
def test_divergence_goes_back(
    bundle: Path, tmp_path: Path, dataset: Dataset, value: float, kept: int
) -> None:
    state = tmp_path / "state"
    model = Diverging(value)
    with Session.open(bundle, engine=model) as session:
        session.attach(state)
        session.train(dataset, 4)
        steps_alone(session, dataset, 4, 6)
        model.value = model.bad
        # One step that is not finite, or five that are far too high: the step before the first of them goes.
        with pytest.raises(DivergedError, match=f"back at {kept} steps"):
            steps_alone(session, dataset, 6, 20)
        model.value = None
        assert session.info.steps == kept
        assert content(session) == run(bundle, dataset, kept)
    with open_session(bundle, state) as session:
        assert content(session) == run(bundle, dataset, kept)
        session.train(dataset, 9)
        assert content(session) == run(bundle, dataset, 9)


def test_snapshots_every_hundred_steps(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    with open_session(bundle, state) as session:
        session.train(dataset, 101)
    names = sorted(path.name for path in state.glob("snapshot-*"))
    assert names == ["snapshot-100.safetensors", "snapshot-101.safetensors"]
    damaged = state / "snapshot-101.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (state / "work.bin").unlink()
    with open_session(bundle, state) as session:
        assert session.info.steps == 100


def test_full_disk(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    """RLIMIT_FSIZE in a child: no room for work.bin, then none for the log's third record."""
    state = tmp_path / "state"
    code = f"""
import resource, sys
from pathlib import Path
from tests.unit.session.test_work_file import *
bundle, state = Path({str(bundle)!r}), Path({str(state)!r})
dataset = make_dataset(bundles.text_examples())
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
try:
    open_session(bundle, state)
except StateError as error:
    print(error)
print(state.exists())
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
with open_session(bundle, state) as session:
    steps_alone(session, dataset, 0, 2)
    kept = content(session)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 + 2 * RECORD + 7, hard))
    try:
        steps_alone(session, dataset, 2, 3)
    except StateError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert content(session) == kept
    steps_alone(session, dataset, 2, 4)
"""
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    first, there, second = child.stdout.splitlines()
    assert "work.bin" in first and "Free space there" in first
    assert there == "False"
    assert "File too large" in second
    with open_session(bundle, state) as session:
        assert content(session) == run(bundle, dataset, 4)


def test_the_steps_of_the_copies(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    with open_session(bundle, state) as session:
        steps_alone(session, dataset, 0, 3)
    header = (state / "work.bin").read_bytes()[: STEPS + 16]
    assert header.startswith(b"ZOWORK\0\1")
    assert sorted(struct.unpack_from("<QQ", header, STEPS)) == [2, 3]
