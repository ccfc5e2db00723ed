"""The session through its C ABI: training, resuming, evaluating; a Python model stands in for the programs."""

from __future__ import annotations

import array
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support import bundles
from tests.support.bundles import FROZEN, SLOT, LinearModel
from zoexport.core import rng
from zoexport.core.errors import (
    BundleError,
    Cancelled,
    ConfigError,
    DataError,
    DivergedError,
    StateError,
)
from zoexport.session import Dataset, Session, StepProgress, memory_usage

ROOT = Path(__file__).parents[2]


def make_dataset(examples: list[tuple[list[bundles.Candidate], int]]) -> Dataset:
    dataset = Dataset()
    for candidates, target in examples:
        dataset.add(candidates, target)
    return dataset


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return bundles.write_bundle(tmp_path / "bundle")


@pytest.fixture
def dataset() -> Iterator[Dataset]:
    with make_dataset(bundles.text_examples()) as made:
        yield made


def open_session(bundle: Path, state: Path | None = None, **attach: object) -> Session:
    session = Session.open(bundle, engine=LinearModel())
    if state is not None:
        session.attach(state, **attach)  # type: ignore[arg-type]
    return session


def values(session: Session, *, finished: bool = True) -> bundles.Floats:
    flat = np.frombuffer(session.read_slot(SLOT, finished=finished), np.float32)
    return flat.reshape(bundles.RANK, bundles.VOCAB).copy()


def state_bytes(session: Session) -> bytes:
    return (
        values(session).tobytes()
        + repr([session.record(i) for i in range(session.info.steps)]).encode()
    )


def test_describes_the_bundle(bundle: Path) -> None:
    with open_session(bundle) as session:
        info = session.info
        assert (info.rows, info.seq_len, info.copies, info.queries) == (2, 8, 4, 2)
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
    eps, lr = np.float32(1e-2), 0.5
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
        rate = lr * (1 - step / total) if schedule == "linear" else lr
        b = bundles.zo_update(b, np.array(g, np.float32), np.float32(rate), seed, step + 1)
    return losses, b


@pytest.mark.parametrize("method", ["prge", "mezo"])
def test_trains_as_the_definitions_say(tmp_path: Path, method: str, dataset: Dataset) -> None:
    path = bundles.write_bundle(tmp_path / "bundle", method=method, settings={"batch": 3})
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
        session.configure(batch=len(dataset), lr=0.3)
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
    for batch, accumulate in ((2, 3), (6, 1)):
        with open_session(bundle) as session:
            session.configure(batch=batch, accumulate=accumulate)
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
        session.configure(lr_schedule=schedule)
        session.train(dataset, 4)
        assert [session.record(i).lr for i in range(4)] == pytest.approx(expected)


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
        assert {given["label_tokens"].size for _, given in model.calls} == {3}


@pytest.mark.parametrize("loss", ["full", "choices"])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_evaluation(tmp_path: Path, loss: str, rows: int) -> None:
    path = bundles.write_bundle(tmp_path / "bundle", rows=rows, max_labels=5)
    examples = bundles.choice_examples(70)
    with make_dataset(examples) as dataset, open_session(path) as session:
        session.configure(loss=loss, lr=0.05)
        session.train(dataset, 3)
        before = state_bytes(session)
        found = session.evaluate(dataset)
        expected = bundles.evaluate(LinearModel(), examples, values(session), loss)
        assert found.loss == pytest.approx(expected["loss"], rel=1e-6)
        assert found.accuracy == pytest.approx(expected["accuracy"])
        assert found.token_accuracy == pytest.approx(expected["token_accuracy"])
        assert found.examples == 70
        assert state_bytes(session) == before


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
        session.configure(lr=0.01)
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
from tests.unit.test_session import bundles, make_dataset, open_session
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
    other = bundles.write_bundle(tmp_path / "other", settings={"lr": 0.25})
    with pytest.raises(StateError, match="the state of bundle"):
        open_session(other, state)
    with pytest.raises(StateError, match="no such folder"):
        open_session(bundle, tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()
    (state / "state.json").unlink()
    with pytest.raises(StateError, match=r"but no state\.json"):
        open_session(bundle, state)


class Diverging(LinearModel):
    """The linear model, whose losses are replaced from step ``start`` on."""

    def __init__(self, start: int, loss: float, until: int = 10**9) -> None:
        super().__init__()
        self.start, self.loss, self.until = start, loss, until

    def __call__(self, program, inputs, outputs):  # type: ignore[no-untyped-def]
        super().__call__(program, inputs, outputs)
        if program == "train" and self.start <= inputs["step"].data[0] < self.until:
            outputs["logprobs"].data[:] = array.array("f", [-self.loss]) * len(
                outputs["logprobs"].data
            )


@pytest.mark.parametrize(
    ("loss", "start", "stopped"), [(float("nan"), 6, 6), (float("inf"), 0, 0), (1e6, 6, 10)]
)
def test_divergence_returns_to_the_last_good_state(
    bundle: Path, tmp_path: Path, dataset: Dataset, loss: float, start: int, stopped: int
) -> None:
    kept = max(start - 1, 0)
    with open_session(bundle, tmp_path / "good") as session:
        if kept:
            session.train(dataset, kept)
        good = state_bytes(session)
    state = tmp_path / "state"
    with Session.open(bundle, engine=Diverging(start, loss)) as session:
        session.attach(state)
        with pytest.raises(DivergedError, match=f"step {stopped}") as caught:
            session.train(dataset, 20)
        assert f"back at {kept} steps" in str(caught.value)
        assert state_bytes(session) == good
    with open_session(bundle, state) as session:
        assert state_bytes(session) == good
        session.train(dataset, kept + 3)
        resumed = state_bytes(session)
    with open_session(bundle) as session:
        session.train(dataset, kept + 3)
        assert state_bytes(session) == resumed


def test_four_bad_steps_are_no_divergence(bundle: Path, dataset: Dataset) -> None:
    with Session.open(bundle, engine=Diverging(6, 1e4, until=10)) as session:
        session.configure(lr=1e-9)
        session.train(dataset, 14)
        assert session.info.steps == 14


def test_full_disk_keeps_the_last_good_state(
    bundle: Path, tmp_path: Path, dataset: Dataset
) -> None:
    """RLIMIT_FSIZE in a child: the log cannot grow beyond five and a half records."""
    state = tmp_path / "state"
    limit = 64 + 5 * 28 + 14
    code = f"""
import resource
from pathlib import Path
from zoexport.core.errors import StateError
from tests.unit.test_session import bundles, make_dataset, open_session, state_bytes
dataset = make_dataset(bundles.text_examples())
with open_session(Path({str(bundle)!r}), Path({str(state)!r})) as session:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
    for _ in range(2):
        try:
            session.train(dataset, 20)
        except StateError as error:
            print(error)
        assert session.info.steps == 5, session.info
    print(state_bytes(session).hex())
"""
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    first, second, kept = child.stdout.splitlines()
    assert first == second and "File too large" in first and "Free space there" in first
    assert (state / "trajectory.log").stat().st_size == 64 + 5 * 28
    assert not list(state.glob("*.tmp"))
    with open_session(bundle, state) as session:
        assert state_bytes(session).hex() == kept
        session.train(dataset, 8)
        resumed = state_bytes(session)
    with open_session(bundle) as session:
        session.train(dataset, 8)
        assert state_bytes(session) == resumed


def test_cancelling_saves(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    with open_session(bundle, state) as session:
        with pytest.raises(Cancelled, match="step 3 of 9"):
            session.train(dataset, 9, lambda progress: progress.step == 3)
        with pytest.raises(ZeroDivisionError):
            session.train(dataset, 9, lambda progress: bool(1 // 0))
    assert (state / "snapshot-3.safetensors").exists()
    with open_session(bundle, state) as session:
        assert session.info.steps == 4


def test_interrupting_saves(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    before = signal.getsignal(signal.SIGINT)
    with open_session(bundle, tmp_path / "state") as session:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(Cancelled):
            session.train(dataset, 10**6)
        steps = session.info.steps
    assert signal.getsignal(signal.SIGINT) is before
    with open_session(bundle, tmp_path / "state", read_only=True) as session:
        assert session.info.steps == steps > 0


def test_imported_adapter_is_the_start(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    imported = np.linspace(-1, 1, bundles.RANK * bundles.VOCAB, dtype=np.float32)
    frozen = array.array("f", [0.25] * (bundles.HIDDEN * bundles.RANK))
    with open_session(bundle, state) as session:
        session.write_slot(SLOT, imported)
        session.write_slot(FROZEN, frozen)
        session.save()
    with open_session(bundle, state) as session:
        assert session.read_slot(SLOT).tobytes() == imported.tobytes()
        assert session.read_slot(FROZEN).tobytes() == frozen.tobytes()
        session.train(dataset, 4)
        assert session.replay_slot(SLOT, 0).tobytes() == imported.tobytes()
        assert session.replay_slot(SLOT, 4).tobytes() == session.read_slot(SLOT).tobytes()
        whole = state_bytes(session)
        with pytest.raises(ConfigError, match="taken steps"):
            session.write_slot(SLOT, imported)
    for snapshot in state.glob("snapshot-*"):
        snapshot.unlink()
    with open_session(bundle, state, read_only=True) as session:
        assert state_bytes(session) == whole


@pytest.mark.parametrize("name", ["adapter.safetensors", "model.bin"])
def test_damaged_bundles_are_refused(bundle: Path, name: str) -> None:
    path = bundle / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(BundleError, match=rf"{name}: found {len(content) - 1} bytes \(truncated"):
        open_session(bundle)
    path.unlink()
    with pytest.raises(BundleError, match=f"{name}: found no such file"):
        open_session(bundle)


def test_altered_bundles_are_refused(bundle: Path, dataset: Dataset) -> None:
    adapter = bundle / "adapter.safetensors"
    content = adapter.read_bytes()
    adapter.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BundleError, match=r"adapter\.safetensors: found altered content"):
        open_session(bundle)
    Session.open(bundle, engine=LinearModel(), verify=False).close()
    adapter.write_bytes(content)
    manifest = bundle / "manifest.json"
    text = manifest.read_text(encoding="utf-8")
    manifest.write_text(text.replace('"lr": 0.5', '"lr": 0.6'), encoding="utf-8")
    with pytest.raises(BundleError, match=r"manifest\.json: found bundle_id"):
        open_session(bundle)
    manifest.write_text(
        text.replace('"schema_version": 1', '"schema_version": 2'), encoding="utf-8"
    )
    with pytest.raises(BundleError, match="found schema_version 2; expected at most 1"):
        open_session(bundle)


def test_impossible_calls_are_refused(bundle: Path, dataset: Dataset) -> None:
    with open_session(bundle) as session:
        for change in ({"lr": 0.0}, {"eps": -1.0}, {"batch": 0}, {"loss": "x"}, {"momentum": 1}):
            with pytest.raises(ConfigError):
                session.configure(**change)
        with pytest.raises(ConfigError, match="no such slot"):
            session.read_slot("lora_B.other")
        with pytest.raises(ConfigError, match="numbers below 7"):
            session.step(dataset, [7])
        with pytest.raises(StateError, match="no state folder"):
            session.save()
        for tokens, message in (
            ([1] * 9, "one of 9 tokens; expected at most seq_len = 8"),
            ([1, 13], "token 13; expected tokens below vocab_size = 13"),
        ):
            with (
                make_dataset([([(tokens, tokens)], 0)]) as strange,
                pytest.raises(DataError, match=message),
            ):
                session.evaluate(strange)


@pytest.mark.parametrize(
    ("tokens", "labels", "target", "message"),
    [
        ([1, 2], [1], 0, "2 tokens and 1 labels"),
        ([], [], 0, "no tokens"),
        ([1], [-100], 0, "no label"),
        ([-1], [1], 0, "token -1"),
        ([1], [-3], 0, "label -3"),
        ([1], [1], 1, "target 1 of 1"),
    ],
)
def test_impossible_examples_are_refused(
    tokens: list[int], labels: list[int], target: int, message: str
) -> None:
    with Dataset() as dataset:
        with pytest.raises(DataError, match=message):
            dataset.add([(tokens, labels)], target)
        assert len(dataset) == 0


def test_example_files(tmp_path: Path, bundle: Path, dataset: Dataset) -> None:
    path = tmp_path / "examples.jsonl"
    line = '{"candidates": [{"tokens": [1, 2], "labels": [2, -100]}], "target": 0}\n'
    path.write_text(line + "\n" + line)
    with Dataset() as loaded:
        loaded.load(path)
        assert len(loaded) == 2
        path.write_text(line + '{"candidates": [{"tokens": [1, 2], "labels": [2]}]}\n')
        with pytest.raises(DataError, match=r"line 2, candidates\[0\]"):
            loaded.load(path)
        path.write_text("")
        with pytest.raises(DataError, match="no examples"):
            loaded.load(path)
        with pytest.raises(DataError, match="No such file"):
            loaded.load(tmp_path / "none")
        assert len(loaded) == 2


def test_an_engine_failure_leaves_the_state(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    model = LinearModel()

    def failing(program, inputs, outputs):  # type: ignore[no-untyped-def]
        model(program, inputs, outputs)
        if inputs["step"].data[0] == 3:
            raise RuntimeError("the device is gone")

    with Session.open(bundle, engine=failing) as session:
        session.attach(tmp_path / "state")
        with pytest.raises(RuntimeError, match="the device is gone"):
            session.train(dataset, 9)
        before = state_bytes(session)
    with open_session(bundle, tmp_path / "state") as session:
        assert session.info.steps == 3
        assert state_bytes(session) == before


def test_memory_is_the_kernels() -> None:
    memory = memory_usage()
    assert 0 < memory.anonymous_bytes <= memory.rss_bytes <= memory.peak_rss_bytes
