"""The ExecuTorch engine: the programs of a hand-made bundle, exported, against the same model in Python."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import bundles, linear_program
from tests.support.bundles import SLOT, LinearModel
from tests.support.sessions import make_dataset, write_examples
from zoexport.core.errors import BundleError, ConfigError, ZoExportError
from zoexport.core.native import runner_path
from zoexport.session import Session


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return linear_program.write(tmp_path / "bundle")


def test_runs_the_programs(bundle: Path) -> None:
    examples = bundles.text_examples() + bundles.choice_examples()
    results = []
    for engine in (None, LinearModel()):
        with make_dataset(examples) as dataset, Session.open(bundle, engine=engine) as session:
            session.configure(learning_rate=0.05)
            session.train(dataset, 6)
            results.append(
                (
                    [session.record(i).loss for i in range(6)],
                    np.frombuffer(session.read_slot(SLOT), np.float32).copy(),
                    session.evaluate(dataset),
                )
            )
    (losses, slot, found), (expected_losses, expected_slot, expected) = results
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    np.testing.assert_allclose(slot, expected_slot, atol=1e-4)
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    assert (found.accuracy, found.token_accuracy) == (expected.accuracy, expected.token_accuracy)


def test_the_runner_is_the_same_session(bundle: Path, tmp_path: Path) -> None:
    examples = bundles.choice_examples()
    path = write_examples(tmp_path / "examples.jsonl", examples)
    state = tmp_path / "state"
    common = ["--bundle", bundle, "--examples", path, "--state", state, "--json"]
    settings = [
        "--set",
        "learning_rate=0.05",
        "--set",
        "loss=choices",
        "--set",
        "lr_scheduler_type=cosine",
    ]
    trained = run("train", *common, *settings, "--seed", "9", "--steps", "3")
    assert set(trained) == {
        "steps", "engine", "losses", "step_seconds_median", "peak_rss_mb", "peak_anonymous_mb", "state",
        "evaluations", "best_step",
    }  # fmt: skip
    assert trained["steps"] == 3 and trained["peak_anonymous_mb"] < trained["peak_rss_mb"]
    run("train", *common, *settings, "--steps", "5")
    evaluated = run("eval", *common, "--set", "loss=choices")
    with make_dataset(examples) as dataset, Session.open(bundle) as session:
        session.configure(learning_rate=0.05, seed=9, loss="choices", lr_scheduler_type="cosine")
        session.train(dataset, 3)
        assert [session.record(i).loss for i in range(3)] == pytest.approx(trained["losses"])
        # The schedule of a longer run differs in its rates, so the rest is compared by the runner's own state.
    with make_dataset(examples) as dataset, Session.open(bundle) as session:
        session.attach(state, read_only=True)
        session.configure(loss="choices")
        assert session.info.steps == 5 and session.info.seed == 9
        assert session.evaluate(dataset).loss == evaluated["loss"]


def test_the_runner_says_what_programs_cost(bundle: Path, tmp_path: Path) -> None:
    path = write_examples(tmp_path / "examples.jsonl", [([([1, 2, 3], [2, 3, 4])], 0)])
    arguments = ["--bundle", bundle, "--examples", path, "--state", tmp_path / "state"]
    found = subprocess.run(
        [str(runner_path()), "train", *map(str, arguments), "--steps", "3", "--json", "--timings"],
        capture_output=True,
        text=True,
        check=True,
    )
    *steps, result = map(json.loads, found.stdout.splitlines())
    assert [step["step"] for step in steps] == [1, 2, 3]
    costs = [step["programs"]["train"] for step in steps]
    # A program is loaded once, and only one that ran has a cost.
    calls = costs[0]["calls"]
    assert [cost["calls"] for cost in costs] == [calls, 2 * calls, 3 * calls] and calls > 0
    assert len({cost["load_seconds"] for cost in costs}) == 1 and costs[0]["load_seconds"] > 0
    assert result["programs"] == {"train": costs[-1]} and result["open_seconds"] > 0
    spent = [0.0, *(cost["seconds"] for cost in costs)]
    for step, before, after in zip(steps, spent, spent[1:], strict=False):
        assert 0 < after - before <= step["seconds"]


def run(*arguments: object) -> dict[str, Any]:
    found = subprocess.run(
        [str(runner_path()), *map(str, arguments)], capture_output=True, text=True, check=True
    )
    assert found.stdout.count("\n") == 1
    return dict(json.loads(found.stdout))


TRAIN = ["train", "--bundle", "x", "--examples", "y", "--state", "z"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "VERB"),
        (["fly"], "'fly'"),
        (
            [*TRAIN, "--steps", "1", "--set", "learning_rate=0"],
            "setting 'learning_rate': found 0; expected a number above",
        ),
        ([*TRAIN, "--steps", "1", "--set", "bach=1"], "no such setting"),
        ([*TRAIN, "--steps", "1", "--set", "batch_size"], "option --set: found 'batch_size'"),
        ([*TRAIN, "--steps", "-1"], "option 'steps': found -1"),
        ([*TRAIN, "--steps", "many"], "option --steps: found 'many'; expected a number"),
        ([*TRAIN, "--steps", "1", "--keep", "all"], "option 'keep': found 'all'"),
        (["train", "--bach", "1"], "option --bach: found no such option"),
        (["train", "--steps"], "option --steps: found nothing after it"),
        (["train", "--bundle", "x", "--examples", "y"], "option --state"),
        (["eval", "--bundle", "x"], "option --data"),
    ],
)
def test_the_runner_refuses_bad_options(arguments: list[str], message: str) -> None:
    found = subprocess.run([str(runner_path()), *arguments], capture_output=True, text=True)
    assert found.returncode == 2 and message in found.stderr and found.stdout == ""


def test_problems_of_programs_are_named(bundle: Path, tmp_path: Path) -> None:
    with make_dataset(bundles.text_examples()) as dataset:
        model = bundle / "model.bin"
        program = model.read_bytes()
        model.write_bytes(program[:-1] + bytes([program[-1] ^ 1]))
        with (
            Session.open(bundle) as session,
            pytest.raises(BundleError, match=r"model\.bin: found altered content"),
        ):
            session.evaluate(dataset)
        model.write_bytes(os.urandom(64) + program[64:])
        with (
            Session.open(bundle, verify=False) as session,
            pytest.raises(
                ZoExportError, match=r"program evaluate \(model\.bin\): found while opening"
            ),
        ):
            session.evaluate(dataset)
    missing = bundles.write_bundle(
        tmp_path / "missing", engine="executorch", changes={"required_ops": ["zoexport::other.out"]}
    )
    with pytest.raises(BundleError, match=r"found the operator zoexport::other\.out"):
        Session.open(missing)
    accelerated = bundles.write_bundle(
        tmp_path / "accelerated", engine="executorch", changes={"backends": ["VulkanBackend"]}
    )
    with pytest.raises(ZoExportError, match="found programs for the backend VulkanBackend"):
        Session.open(accelerated)
    elsewhere = bundles.write_bundle(tmp_path / "elsewhere", engine="coreml")
    with pytest.raises(BundleError, match="found the engine coreml"):
        Session.open(elsewhere)


def test_the_threads_of_a_session_that_runs_stay(bundle: Path) -> None:
    """All programs of a process share one pool of threads, which is not replaced under a session that has programs."""
    started, stop = threading.Event(), threading.Event()
    with make_dataset(bundles.text_examples()) as dataset:
        losses = []
        with Session.open(bundle, threads=1) as session:
            session.train(dataset, 8, lambda progress: bool(losses.append(progress.loss)))

        def train() -> list[float]:
            found: list[float] = []
            with Session.open(bundle, threads=1) as session:
                while not stop.is_set() or len(found) < 8:
                    session.step(dataset, [0, 1, 2])
                    found.append(session.record(len(found)).loss)
                    started.set()
            return found

        with ThreadPoolExecutor() as pool:
            running = pool.submit(train)
            try:
                assert started.wait(60)
                for threads in (2, 3):
                    with pytest.raises(ConfigError) as refused:
                        Session.open(bundle, threads=threads)
                    assert refused.value.where == "threads" and refused.value.found == str(threads)
                    assert refused.value.expected.startswith("1, as another session of this")
                # The same number, and no wish, are no change.
                for threads in (1, 0):
                    with Session.open(bundle, threads=threads) as other:
                        other.train(dataset, 8, lambda progress: bool(losses.append(progress.loss)))
            finally:
                stop.set()
            assert len(running.result(60)) >= 8
        assert losses[:8] == losses[8:16] == losses[16:]
        with Session.open(bundle, threads=2) as session:
            session.train(dataset, 1)
