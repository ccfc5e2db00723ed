"""The session through its C ABI: training, resuming, evaluating; a Python model stands in for the programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import bundles
from tests.support.bundles import FROZEN, SLOT, LinearModel
from tests.support.sessions import make_dataset, open_session, state_bytes, values
from zoexport.core import rng
from zoexport.core.errors import (
    DataError,
    StateError,
)
from zoexport.session import Dataset, Session, StepProgress

ROOT = Path(__file__).parents[3]


def test_describes_the_bundle(bundle: Path) -> None:
    with open_session(bundle) as session:
        info = session.info
        assert (info.rows, info.max_length, info.copies, info.num_queries) == (2, 8, 4, 2)
        assert (info.method, info.max_labels, info.seed, info.steps) == ("prge", 10, 7, 0)
        trainable, frozen = session.slots()
        assert (trainable.name, trainable.role, trainable.tensor_id) == (SLOT, "trainable", 5)
        assert frozen.shape == (bundles.HIDDEN, bundles.RANK)
        read = np.frombuffer(session.read_slot(FROZEN), np.float32)
        assert read.tobytes() == bundles.initial_values()[FROZEN].tobytes()


def test_does_not_import_torch_or_numpy() -> None:
    code = "import sys, zoexport.session; print({'torch', 'numpy'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def expected_run(
    steps: int, batch: int, total: int = 0, schedule: str = "constant"
) -> tuple[list[list[float]], bundles.Floats]:
    """Zeroth-order SGD from the definitions, on the text examples: each step's losses and the final slot."""
    model, examples = LinearModel(), bundles.text_examples()
    start = bundles.initial_values()
    b, a, seed, queries = start[SLOT], start[FROZEN], 7, 2
    eps, learning_rate = np.float32(1e-2), 0.5
    losses = []
    stream = [
        index
        for epoch in range(steps * batch // len(examples) + 1)
        for index in rng.permutation(seed, epoch, len(examples))
    ]
    for step in range(steps):
        chosen = [examples[i] for i in stream[step * batch : (step + 1) * batch]]
        found = []
        for query in range(queries):
            z = rng.normals(seed, bundles.TENSOR_ID, query, step, b.size).reshape(b.shape)
            for copy in (b + eps * z, b - eps * z):
                scores = [bundles.score(model, c[t], copy, a) for c, t in chosen]
                found.append(float(np.mean([-total / count for total, count, _ in scores])))
        losses.append(found)
        g = [
            np.float32((found[2 * i] - found[2 * i + 1]) / (2 * float(eps))) for i in range(queries)
        ]
        rate = learning_rate * (1 - step / total) if schedule == "linear" else learning_rate
        b = bundles.zo_update(b, np.array(g, np.float32), np.float32(rate), seed, step + 1)
    return losses, b


@pytest.mark.parametrize("method", ["prge", "mezo"])
def test_trains_as_the_definitions_say(tmp_path: Path, method: str, dataset: Dataset) -> None:
    path = bundles.write_bundle(tmp_path / "bundle", method=method, settings={"batch_size": 3})
    losses, b = expected_run(12, 3)
    seen: list[StepProgress] = []
    with open_session(path) as session:
        session.train(dataset, 12, lambda progress: bool(seen.append(progress)))
        np.testing.assert_allclose([p.loss for p in seen], np.mean(losses, axis=1), rtol=1e-6)
        np.testing.assert_allclose(values(session), b, rtol=1e-4, atol=1e-5)
        assert values(session).tobytes() != values(session, finished=False).tobytes()
        assert [p.step for p in seen] == list(range(1, 13)) and seen[-1].total == 12


def test_loss_falls(bundle: Path, dataset: Dataset) -> None:
    seen: list[float] = []
    with open_session(bundle) as session:
        session.configure(batch_size=len(dataset), learning_rate=0.3)
        session.train(dataset, 60, lambda progress: bool(seen.append(progress.loss)))
    assert np.mean(seen[-5:]) < 0.8 * np.mean(seen[:5])


def test_prge_and_mezo_are_the_same_run(tmp_path: Path, dataset: Dataset) -> None:
    found = []
    for method in ("prge", "mezo"):
        path = bundles.write_bundle(tmp_path / method, method=method)
        with open_session(path) as session:
            session.train(dataset, 9)
            found.append(state_bytes(session))
    assert found[0] == found[1]


def test_accumulation_is_a_larger_batch(bundle: Path, dataset: Dataset) -> None:
    found = []
    for batch, accumulated in ((2, 3), (6, 1)):
        with open_session(bundle) as session:
            session.configure(batch_size=batch, gradient_accumulation_steps=accumulated)
            session.train(dataset, 5)
            found.append(state_bytes(session))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [("constant", [0.5] * 4), ("linear", [0.5, 0.375, 0.25, 0.125]), ("cosine", None)],
)
def test_schedules(
    bundle: Path, dataset: Dataset, schedule: str, rates: list[float] | None
) -> None:
    expected = rates or [0.5 * (1 + np.cos(np.pi * s / 4)) / 2 for s in range(4)]
    with open_session(bundle) as session:
        session.configure(lr_scheduler_type=schedule)
        session.train(dataset, 4)
        assert [session.record(i).learning_rate for i in range(4)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("schedule", "warmup", "rates"),
    [
        ("constant", 4, [0.125, 0.25, 0.375, 0.5, 0.5, 0.5, 0.5, 0.5]),
        ("linear", 4, [0.125, 0.25, 0.375, 0.5, 0.5, 0.375, 0.25, 0.125]),
        ("linear", 8, [0.0625 * (step + 1) for step in range(8)]),
        ("linear", 16, [0.03125 * (step + 1) for step in range(8)]),
    ],
)
def test_the_rate_rises_over_the_warmup(
    bundle: Path, dataset: Dataset, tmp_path: Path, schedule: str, warmup: int, rates: list[float]
) -> None:
    with open_session(bundle, tmp_path / "state") as session:
        session.configure(lr_scheduler_type=schedule, warmup_steps=warmup, learning_rate=0.5)
        session.train(dataset, 8)
        assert [session.record(i).learning_rate for i in range(8)] == rates
    with open_session(bundle, tmp_path / "state") as session:
        assert session.settings["warmup_steps"] == warmup  # the run's


def test_a_step_reports_its_losses(bundle: Path, dataset: Dataset) -> None:
    with open_session(bundle) as session:
        first = session.step(dataset, [2, 0, 2])
        second = session.step(dataset, [1])
    assert (first.step, second.step, len(first.losses), len(first.gradients)) == (0, 1, 4, 2)
    assert first.loss == pytest.approx(np.mean(first.losses), rel=1e-12)
    for i in range(2):
        slope = (first.losses[2 * i] - first.losses[2 * i + 1]) / (2 * float(np.float32(1e-2)))
        assert first.gradients[i] == np.float32(slope)


def test_calls_share_rows_and_spill_over(tmp_path: Path) -> None:
    """One row of six candidates, and a step whose later calls apply nothing."""
    path = bundles.write_bundle(tmp_path / "bundle", rows=2, max_labels=4, min_labels=3)
    model = LinearModel()
    prompt = [1, 2, 3]
    single = [([*prompt, t], [-100, -100, t, -100]) for t in range(6)]
    with (
        make_dataset([(single, 4), ([([5, 6], [6, 7])], 0)]) as dataset,
        Session.open(path, engine=model) as session,
    ):
        session.evaluate(dataset)
        tokens = [given["tokens"].tolist() for _, given in model.calls]
        # Six entries of one row need two calls of four; the second example joins the second call.
        assert tokens == [[[1, 2, 3] + [0] * 5, [0] * 8], [[1, 2, 3] + [0] * 5, [5, 6] + [0] * 6]]
        assert model.calls[0][1]["label_tokens"].tolist() == [0, 1, 2, 3]
        assert model.calls[1][1]["label_positions"].tolist() == [2, 2, 8, 9]
        session.configure(loss="choices")
        with pytest.raises(DataError, match="example 1: found no choices"):
            session.step(dataset, [0])
        session.configure(loss="full")
        model.calls.clear()
        session.step(dataset, [0, 1, 0, 1])
        session.step(dataset, [0, 1, 0, 1])
        pending = [bool(given["projected_gradients"].any()) for _, given in model.calls]
        assert pending == [False, False, True, False]
        # The later call of the step starts from what the first one made.
        assert model.calls[3][1][SLOT].tobytes() == values(session, finished=False).tobytes()
        # Rows of a length share a call: two of one label, filled up, and two of two.
        assert [given["label_tokens"].size for _, given in model.calls] == [3, 4, 3, 4]


@pytest.mark.parametrize("choices", ["sum", "mean"])
@pytest.mark.parametrize("loss", ["full", "choices"])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_evaluation(tmp_path: Path, loss: str, choices: str, rows: int) -> None:
    path = bundles.write_bundle(tmp_path / "bundle", rows=rows, max_labels=5)
    examples = bundles.choice_examples(70)
    with make_dataset(examples) as dataset, open_session(path) as session:
        session.configure(loss=loss, choices=choices, learning_rate=0.05)
        session.train(dataset, 3)
        before = state_bytes(session)
        found = session.evaluate(dataset)
        now = values(session)
        expected = bundles.evaluate(LinearModel(), examples, now, loss, choices=choices)
        assert found.loss == pytest.approx(expected["loss"], rel=1e-6)
        assert found.accuracy == pytest.approx(expected["accuracy"])
        assert found.token_accuracy == pytest.approx(expected["token_accuracy"])
        assert found.examples == 70
        assert state_bytes(session) == before


@pytest.mark.parametrize("method", ["prge", "mezo"])
def test_a_program_that_trains_evaluates_too(tmp_path: Path, method: str) -> None:
    """Without a program that perturbs nothing, that which trains runs with nothing perturbed."""
    examples, found = bundles.choice_examples(9), []
    for evaluates in (True, False):
        path = bundles.write_bundle(
            tmp_path / str(evaluates), method=method, max_labels=5, evaluates=evaluates
        )
        with make_dataset(examples) as dataset, open_session(path) as session:
            session.configure(loss="choices", learning_rate=0.05)
            session.train(dataset, 3)
            before = state_bytes(session)
            found.append(session.evaluate(dataset))
            assert state_bytes(session) == before
    assert found[0] == found[1]


def test_accuracy_needs_choices(bundle: Path, dataset: Dataset) -> None:
    with open_session(bundle) as session:
        assert session.evaluate(dataset).accuracy is None


@pytest.mark.parametrize("stop", range(1, 8))
def test_resumed_run_is_the_same_run(
    bundle: Path, tmp_path: Path, dataset: Dataset, stop: int
) -> None:
    with open_session(bundle, tmp_path / "whole") as session:
        session.train(dataset, 8)
        whole = state_bytes(session)
    with open_session(bundle, tmp_path / "parts") as session:
        # Not train(): closing without a save leaves the log alone, as an abrupt end does.
        order = [i for e in range(4) for i in rng.permutation(7, e, len(dataset))]
        for step in range(stop):
            session.step(dataset, [int(i) for i in order[3 * step : 3 * step + 3]])
    assert not list((tmp_path / "parts").glob("snapshot-*"))
    with open_session(bundle, tmp_path / "parts") as session:
        assert session.info.steps == stop
        session.train(dataset, 8)
        assert state_bytes(session) == whole
    log = (tmp_path / "parts" / "trajectory.log").read_bytes()
    assert log == (tmp_path / "whole" / "trajectory.log").read_bytes()
    assert [p.name for p in (tmp_path / "parts").glob("snap*")] == ["snapshot-7.safetensors"]


def test_log_torn_at_every_byte(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    with open_session(bundle, state) as session:
        session.train(dataset, 3)
        whole = state_bytes(session)
    log = (state / "trajectory.log").read_bytes()
    record = 20 + 4 * 2
    assert len(log) == 64 + 3 * record
    for size in range(64, len(log) + 1):
        (state / "trajectory.log").write_bytes(log[:size])
        with open_session(bundle, state, read_only=True) as session:
            assert session.info.steps == (size - 64) // record
    for size in (64 + record - 1, 64 + 3 * record - 1):
        (state / "trajectory.log").write_bytes(log[:size])
        with open_session(bundle, state) as session:
            session.train(dataset, 3)
            assert state_bytes(session) == whole
    (state / "trajectory.log").write_bytes(log[:50])
    with pytest.raises(StateError, match="damaged header"):
        open_session(bundle, state)


def test_snapshots_serve_and_damaged_ones_do_not_matter(
    bundle: Path, tmp_path: Path, dataset: Dataset
) -> None:
    state = tmp_path / "state"
    with open_session(bundle, state) as session:
        session.configure(learning_rate=0.01)
        session.train(dataset, 205)
        whole = state_bytes(session)
        replayed = session.replay_slot(SLOT, 205)
        assert replayed.tobytes() == session.read_slot(SLOT).tobytes()
    names = sorted(path.name for path in state.glob("snapshot-*"))
    assert names == ["snapshot-199.safetensors", "snapshot-204.safetensors"]
    newest = state / "snapshot-204.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    (state / "snapshot-203.safetensors").write_bytes(content[:100])
    (state / "snapshot-9999.safetensors").write_bytes(bytes(content))
    with open_session(bundle, state, read_only=True) as session:
        assert state_bytes(session) == whole
    with open_session(bundle, state, read_only=True) as session:
        current = values(session, finished=False)
    assert bundles.read_safetensors(newest)[SLOT].tobytes() != current.tobytes()


def test_killed_run_resumes(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    with open_session(bundle, tmp_path / "whole") as session:
        session.train(dataset, 40)
        whole = state_bytes(session)
    code = f"""
import sys
from pathlib import Path
from tests.unit.session.test_session import bundles, make_dataset, open_session
dataset = make_dataset(bundles.text_examples())
with open_session(Path({str(bundle)!r}), Path({str(tmp_path / "killed")!r})) as session:
    session.train(dataset, 40, lambda p: print(p.step, flush=True) or p.step > 39)
"""
    for after in (5, 17):
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= after:
                break
        with pytest.raises(StateError, match=f"process {child.pid}"):
            open_session(bundle, tmp_path / "killed")
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    with open_session(bundle, tmp_path / "killed") as session:
        assert 17 <= session.info.steps < 40
        session.train(dataset, 40)
        assert state_bytes(session) == whole


def test_one_run_a_state(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    with open_session(bundle, state) as session:
        session.train(dataset, 2)
        with pytest.raises(StateError, match=f"process {os.getpid()}"):
            open_session(bundle, state)
        with open_session(bundle, state, read_only=True) as reader:
            assert reader.info.steps == 2
            with pytest.raises(StateError, match="attached for reading"):
                reader.train(dataset, 3)
    open_session(bundle, state).close()


def test_states_of_other_runs_are_refused(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    with open_session(bundle, state, seed=2**64 - 1) as session:
        assert session.info.seed == 2**64 - 1
        session.train(dataset, 2)
        with pytest.raises(StateError, match="seed 3"):
            session.configure(seed=3)
    with pytest.raises(StateError, match=f"found seed {2**64 - 1}; expected seed 7"):
        open_session(bundle, state, seed=7)
    with open_session(bundle, state) as session:
        assert session.info.seed == 2**64 - 1
    other = bundles.write_bundle(tmp_path / "other", settings={"learning_rate": 0.25})
    with pytest.raises(StateError, match="the state of bundle"):
        open_session(other, state)
    with pytest.raises(StateError, match="no such folder"):
        open_session(bundle, tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()
    (state / "state.json").unlink()
    with pytest.raises(StateError, match=r"but no state\.json"):
        open_session(bundle, state)
