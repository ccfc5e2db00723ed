"""The session where something goes wrong: divergence, full disks, interrupts, damaged bundles, bad input."""

from __future__ import annotations

import array
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import bundles
from tests.support.bundles import FROZEN, SLOT, LinearModel
from tests.support.sessions import make_dataset, open_session, state_bytes
from zoexport.core.errors import (
    BundleError,
    Cancelled,
    ConfigError,
    DataError,
    DivergedError,
    StateError,
)
from zoexport.session import Dataset, Session, memory_usage

ROOT = Path(__file__).parents[3]


class Diverging(LinearModel):
    """The linear model, whose losses are replaced from step ``start`` on."""

    def __init__(self, start: int, loss: float, until: int = 10**9) -> None:
        super().__init__()
        self.start, self.loss, self.until = start, loss, until

    def __call__(self, program: str, inputs: Any, outputs: Any) -> None:
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
        session.configure(learning_rate=1e-9)
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
from tests.unit.session.test_session import bundles, make_dataset, open_session, state_bytes
dataset = make_dataset(bundles.text_examples())
with open_session(Path({str(bundle)!r}), Path({str(state)!r})) as session:
    session.train(dataset, 1)  # writes the run's settings, which are longer than the limit
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
    manifest.write_text(
        text.replace('"learning_rate": 0.5', '"learning_rate": 0.6'), encoding="utf-8"
    )
    with pytest.raises(BundleError, match=r"manifest\.json: found bundle_id"):
        open_session(bundle)
    manifest.write_text(
        text.replace('"schema_version": 1', '"schema_version": 2'), encoding="utf-8"
    )
    with pytest.raises(BundleError, match="found schema_version 2; expected at most 1"):
        open_session(bundle)


def test_impossible_calls_are_refused(bundle: Path, dataset: Dataset) -> None:
    with open_session(bundle) as session:
        for change in (
            {"learning_rate": 0.0},
            {"eps": -1.0},
            {"batch_size": 0},
            {"loss": "x"},
            {"momentum": 1},
        ):
            with pytest.raises(ConfigError):
                session.configure(**change)
        with pytest.raises(ConfigError, match="no such slot"):
            session.read_slot("lora_B.other")
        with pytest.raises(ConfigError, match="numbers below 7"):
            session.step(dataset, [7])
        with pytest.raises(StateError, match="no state folder"):
            session.save()
        for tokens, message in (
            ([1] * 9, "one of 9 tokens; expected at most max_length = 8"),
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

    def failing(program: str, inputs: Any, outputs: Any) -> None:
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
