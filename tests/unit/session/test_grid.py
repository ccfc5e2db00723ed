"""Zeroth-order training of integers in the session (docs/noise.md): steps, states, values that pass."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support import bundles, grid_bundles
from tests.support.grid_bundles import BIAS, LR, QUERIES, SLOTS, GridModel, initial_values, losses
from tests.support.grid_integers import EPS, SEED, TABLE, TRAINED, Arrays, integers, updated
from tests.support.sessions import make_dataset
from zoexport.compiler import parity_session
from zoexport.compiler.parity import state_error
from zoexport.compiler.parity_batches import make_batch
from zoexport.core import rng
from zoexport.core.errors import ConfigError, DivergedError
from zoexport.session import Bundle, Dataset, Session, Tensor

ROOT = Path(__file__).parents[3]
EXAMPLES = bundles.text_examples()
RECORD = 20 + 4 * QUERIES


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return grid_bundles.write_bundle(tmp_path / "bundle")


@pytest.fixture
def dataset() -> Iterator[Dataset]:
    with make_dataset(EXAMPLES) as made:
        yield made


def open_session(bundle: Path, state: Path | None = None, *, read_only: bool = False) -> Session:
    session = Session.open(bundle, engine=GridModel())
    if state is not None:
        session.attach(state, read_only=read_only)
    return session


def state_of(session: Session, *, finished: bool = True) -> Arrays:
    return {
        slot.name: np.frombuffer(
            session.read_slot(slot.name, finished=finished), slot.dtype
        ).reshape(slot.shape)
        for slot in session.slots()
    }


def same(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> bool:
    return all(ours[name].tobytes() == theirs[name].tobytes() for name in SLOTS)


def content(session: Session) -> bytes:
    values = b"".join(session.read_slot(name).tobytes() for name in TRAINED)
    return values + repr([session.record(i) for i in range(session.info.steps)]).encode()


def run(bundle: Path, dataset: Dataset, steps: int, state: Path | None = None) -> bytes:
    with open_session(bundle, state) as session:
        session.train(dataset, steps)
        return content(session)


def steps_alone(session: Session, dataset: Dataset, first: int, last: int) -> None:
    """What train does, without its save at the end: an abrupt end leaves this."""
    order = [int(i) for e in range(60) for i in rng.permutation(SEED, e, len(dataset))]
    for step in range(first, last):
        session.step(dataset, order[3 * step : 3 * step + 3])


def test_steps_are_those_of_the_definitions(bundle: Path, dataset: Dataset) -> None:
    state = initial_values()
    with open_session(bundle) as session:
        assert (session.info.num_queries, session.info.copies, session.info.rows) == (2, 4, 8)
        for step, indices in enumerate([[0, 1, 2], [3, 4, 0], [1], [2, 6, 5]]):
            found = session.step(dataset, indices)
            # The first call of a step applies the update of the step before.
            assert same(state_of(session, finished=False), state)
            expected = losses(state, step, [EXAMPLES[i] for i in indices])
            assert found.losses == pytest.approx(expected, rel=3e-6)
            assert len(set(found.losses)) == 4
            gradients = [
                np.float32((found.losses[2 * q] - found.losses[2 * q + 1]) / (2 * EPS))
                for q in range(QUERIES)
            ]
            record = session.record(step)
            assert record.gradients == found.gradients == tuple(map(float, gradients))
            assert (record.learning_rate, record.eps) == (LR, EPS)
            before = state
            state = updated(state, record.gradients, record.learning_rate, step)
            assert same(state_of(session), state)
            assert not same(state, before)


@pytest.mark.parametrize("estimator", ["q-rge2", "q-rge1", "q-rge2-summed", "q-rge1-summed"])
def test_a_hundred_steps(tmp_path: Path, dataset: Dataset, estimator: str) -> None:
    bundle = grid_bundles.write_bundle(tmp_path / "bundle", estimator=estimator)
    state = initial_values()
    with open_session(bundle, tmp_path / "state") as session:
        session.train(dataset, 100)
        for step in range(100):
            record = session.record(step)
            rule = {
                "second": estimator.startswith("q-rge2"),
                "summed": estimator.endswith("summed"),
            }
            state = updated(state, record.gradients, record.learning_rate, step, **rule)
        assert same(state_of(session), state)
        for name in SLOTS:
            assert session.replay_slot(name, 100) == session.read_slot(name)
            moved = name in TRAINED
            assert (session.replay_slot(name, 0) != session.read_slot(name)) == moved
    snapshot = load_file(tmp_path / "state" / "snapshot-99.safetensors")
    assert {name: str(values.dtype) for name, values in snapshot.items()} == {
        name: dtype for name, (_, dtype) in TRAINED.items()
    }


def test_only_stages_own_slots_are_given(bundle: Path, dataset: Dataset) -> None:
    model = GridModel()
    with Session.open(bundle, engine=model) as session:
        session.train(dataset, 3)
        del model.calls[:]
        session.evaluate(dataset)
        final = state_of(session)
    layers = [(name.split("@")[0], given) for name, given in model.calls if name.startswith("int")]
    assert [name for name, _ in layers[:3]] == ["int4.forward", "int4.forward", "int8.forward"]
    for (_, given), name in zip(layers, list(TRAINED) * len(layers), strict=False):
        np.testing.assert_array_equal(given["codes"], final[name])
        assert given["epsilon"].tolist() == [0.0]


def test_a_resumed_run_is_the_same_run(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    whole = run(bundle, dataset, 100, tmp_path / "state1")
    for steps in (30, 100):
        resumed = run(bundle, dataset, steps, tmp_path / "state2")
    assert resumed == whole
    for name in ("trajectory.log", "snapshot-99.safetensors", "snapshot-100.safetensors"):
        first, second = (tmp_path / f"state{number}" / name for number in (1, 2))
        assert first.exists() == second.exists()
        assert not first.exists() or first.read_bytes() == second.read_bytes()
    assert not list(tmp_path.glob("state*/work.bin"))


@pytest.mark.parametrize("damage", ["none", "all", "newest", "torn", "short log"])
def test_what_a_state_lacks_is_repeated(
    bundle: Path, tmp_path: Path, dataset: Dataset, damage: str
) -> None:
    state = tmp_path / "state"
    run(bundle, dataset, 6, state)
    run(bundle, dataset, 9, state)
    with open_session(bundle, state) as session:
        steps_alone(session, dataset, 9, 11)
    newest, older = state / "snapshot-8.safetensors", state / "snapshot-5.safetensors"
    log = (state / "trajectory.log").read_bytes()
    steps = 11
    if damage in ("all", "newest"):
        newest.unlink()
    if damage == "all":
        older.unlink()
    if damage == "torn":
        newest.write_bytes(newest.read_bytes()[:-1])
    if damage == "short log":  # the newest snapshot has more updates than it knows of
        steps = 7
        (state / "trajectory.log").write_bytes(log[: 64 + steps * RECORD])
    for read_only in (True, False):
        with open_session(bundle, state, read_only=read_only) as session:
            assert session.info.steps == steps
            assert content(session) == run(bundle, dataset, steps)
            evaluated = session.evaluate(dataset)
    with open_session(bundle, state) as session:
        session.train(dataset, 14)
        assert content(session) == run(bundle, dataset, 14)
        assert session.evaluate(dataset) != evaluated


def train_in_a_child(bundle: Path, state: Path, steps: int, least: int) -> int:
    """Train in a process that is killed once it reported ``least`` steps; what it reported last."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with open_session(bundle, state) as session, make_dataset(EXAMPLES) as dataset:
            session.train(dataset, steps, lambda p: os.write(writing, b"%d\n" % p.step) == 0)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as reports:
        for line in reports:
            if int(line) >= least:
                break
        os.kill(child, signal.SIGKILL)
        last = [line, *reports][-1]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return int(last)


def kill_again_and_again(bundle: Path, state: Path) -> None:
    initial_values()  # makes the table, which every child would otherwise make anew
    reached = 0
    for kill in range(20):
        reported = train_in_a_child(bundle, state, 600, reached + 1 + 5 * (kill % 4))
        with open_session(bundle, state, read_only=True) as session:
            # The step that ran may have reached the log before it was reported.
            assert reached < reported <= session.info.steps <= reported + 1
            reached = session.info.steps
            current = content(session)
            for name in TRAINED:
                assert session.replay_slot(name, reached) == session.read_slot(name)
    names = {path.name for path in state.iterdir() if not path.name.startswith("snapshot")}
    assert names == {"lock", "run.json", "state.json", "trajectory.log"}
    with make_dataset(EXAMPLES) as dataset:
        assert run(bundle, dataset, reached) == current


def test_killed_again_and_again(bundle: Path, tmp_path: Path) -> None:
    """Twenty times kill -9, some within a step: the run is where the undisturbed one is."""
    # In a process of its own, which has no threads when it forks.
    code = f"""
from pathlib import Path
from tests.unit.session.test_grid import kill_again_and_again
kill_again_and_again(Path({str(bundle)!r}), Path({str(tmp_path / "state")!r}))
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_step_that_fails_changes_nothing(bundle: Path, dataset: Dataset) -> None:
    model, left = GridModel(), list[int]()

    def engine(program: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        if left and not left.pop():
            raise RuntimeError("the device is gone")
        model(program, inputs, outputs)

    for good in (0, 3):
        with Session.open(bundle, engine=engine) as session:
            session.train(dataset, 2)
            kept = content(session)
            left[:] = [0, *[1] * good]
            with pytest.raises(RuntimeError, match="the device is gone"):
                session.train(dataset, 3)
            assert content(session) == kept
            session.train(dataset, 4)
            assert content(session) == run(bundle, dataset, 4)


def test_divergence_goes_back(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    model, bad = GridModel(), list[bool]()

    def engine(program: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        model(program, inputs, outputs)
        if bad and "logprobs" in outputs:
            outputs["logprobs"].data[0] = float("nan")

    with Session.open(bundle, engine=engine) as session:
        session.attach(tmp_path / "state")
        session.train(dataset, 4)
        steps_alone(session, dataset, 4, 6)
        bad.append(True)
        with pytest.raises(DivergedError, match="back at 5 steps"):
            steps_alone(session, dataset, 6, 7)
        assert content(session) == run(bundle, dataset, 5)


def test_integers_pass_as_they_are(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    given = {
        "codes.0": np.arange(32, dtype=np.uint8) * 8,
        "codes.2": np.arange(-127, 128, 4, dtype=np.int8),
    }
    with open_session(bundle, state) as session:
        assert {slot.name: slot.dtype for slot in session.slots()} == {
            name: dtype for name, (_, _, dtype, _) in SLOTS.items()
        }
        assert same(state_of(session), initial_values())
        for name, values in given.items():
            session.write_slot(name, values)
            with pytest.raises(ConfigError, match=f"slot {name}: found 31 bytes; expected"):
                session.write_slot(name, values[:31])
        low = given["codes.2"].copy()
        low[5] = -128
        with pytest.raises(ConfigError, match=r"slot codes\.2: found the value -128"):
            session.write_slot("codes.2", low)
        with pytest.raises(ConfigError, match="no gradient"):
            session.read_slot("codes.0", gradient=True)
        bias = np.linspace(-1, 1, 13, dtype=np.float32)
        session.write_slot(BIAS, bias)
        steps_alone(session, dataset, 0, 2)
        whole = content(session)
    with open_session(bundle, state, read_only=True) as session:
        assert content(session) == whole
        for name, values in given.items():
            assert session.replay_slot(name, 0).tobytes() == values.tobytes()
        assert session.read_slot(BIAS).tobytes() == bias.tobytes()
        assert session.read_slot(TABLE).tobytes() == initial_values()[TABLE].tobytes()


def test_a_slot_of_integers_passes_in_its_own_dtype(bundle: Path) -> None:
    from zoexport.session import abi

    room = (abi.c_float * 64)()
    with open_session(bundle) as session:
        for name in ("codes.0", TABLE):
            with pytest.raises(ConfigError, match=f"slot {name}: found 252 bytes; .* of u?int"):
                abi.call("zo_session_read_slot", session.handle, name.encode(), 1, room, 252)


def test_parity_sees_integers(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity_session, "evaluator", lambda _: GridModel())
    batch = make_batch(
        {"max_length": 8, "batch_size": 2, "gradient_accumulation_steps": 1, "loss": "full"}, 13, 0
    )
    with parity_session.SessionSide(Bundle.open(bundle), "full") as side:
        first, second = side.step(batch), side.step(batch)
        tensors, finished = side.tensors(), side.state()
        assert side.noise(0) == {}
        expected = updated(initial_values(), tuple(first["gradients"]), LR, 0)
    for name in TRAINED:
        np.testing.assert_array_equal(first["before"][name], integers(name, initial_values()[name]))
        np.testing.assert_array_equal(second["after"][name], integers(name, expected[name]))
        np.testing.assert_array_equal(tensors[name].numpy(), second["after"][name])
        assert finished[name].dtype == np.int8
    assert state_error(second["after"], first["before"]) > 0
    assert state_error({"w": np.array([-127], np.int8)}, {"w": np.array([127], np.int8)}) == 2


def test_another_eps_is_refused(bundle: Path, dataset: Dataset) -> None:
    with open_session(bundle) as session:
        with pytest.raises(
            ConfigError, match=r"'eps': found 0\.5.*expected 0\.75.*compile the bun"
        ):
            session.configure(eps=0.5)
        session.configure(eps=EPS, learning_rate=1.0)
        session.train(dataset, 2)
        assert session.record(1).learning_rate == 1.0
