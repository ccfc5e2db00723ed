"""``train`` that goes on with a run, and ``inspect`` of its state, as processes of the command line are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from zoexport.cli.main import run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six examples."""
    folder = tmp_path_factory.mktemp("runs")
    choices = [" good", " bad"]
    with (folder / "data.jsonl").open("w") as file:
        for i in range(6):
            line = {"prompt": f"no {i}", "completion": choices[i % 2], "choices": choices}
            file.write(json.dumps(line) + "\n")
    return folder / "data.jsonl"


def call(capfd: pytest.CaptureFixture[str], code: int, *arguments: object) -> Any:
    assert run([*map(str, arguments), "--json"]) == code
    return json.loads(capfd.readouterr().out)


def test_a_run_and_its_state(
    compiler: Compiler, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle, state = compiler.bundle("llama_tied", "prge"), tmp_path / "state"

    def train(code: int, steps: int, *others: object, data: Path = data) -> Any:
        arguments = ("--data", data, "--state", state, "--steps", steps)
        return call(capfd, code, "train", bundle, *arguments, *others)

    train(0, 1, "--set", "learning_rate=0.001", "--set", "loss=choices")
    # What is not given is the run's, also how examples are read.
    assert train(0, 2)["steps"] == 2
    shorter = tmp_path / "shorter.jsonl"
    shorter.write_text("".join(data.read_text().splitlines(keepends=True)[:-1]))
    error = train(1, 3, "--set", "learning_rate=0.002", data=shorter)["error"]
    assert error["found"].startswith("a run with learning_rate 0.001, 6 examples of digest ")
    assert error["expected"].startswith("learning_rate 0.002, 5 examples of digest ")
    assert "--change-settings" in error["fix"]
    assert train(0, 3, "--set", "learning_rate=0.002", "--change-settings")["steps"] == 3

    found = call(capfd, 0, "inspect", state)
    assert found == call(capfd, 0, "inspect", bundle, "--state", state)
    assert (found["method"], found["steps"], found["damage"]) == ("prge", 3, None)
    assert (found["settings"]["learning_rate"], found["settings"]["loss"]) == (0.002, "choices")
    assert found["changes"] == [{"step": 2, "key": "learning_rate", "old": 0.001, "new": 0.002}]
    assert found["data"]["examples"] == len(data.read_text().splitlines())
    other = compiler.bundle("llama_tied", "mebp")
    assert "state of" in call(capfd, 1, "inspect", other, "--state", state)["error"]["found"]
    assert (
        "no state.json" in call(capfd, 1, "inspect", bundle, "--state", tmp_path)["error"]["found"]
    )
    assert run(["inspect", str(state)]) == 0
    shown = capfd.readouterr().out
    assert "A state of prge after 3 steps" in shown and "learning_rate: 0.001 -> 0.002" in shown

    log = state / "trajectory.log"
    content = bytearray(log.read_bytes())
    content[70] ^= 1
    log.write_bytes(content)
    assert "damage after 0 good records" in call(capfd, 1, "inspect", state)["damage"]
    assert train(0, 4, "--recover")["steps"] == 4
    assert (state / "trajectory.log.damaged-1").read_bytes() == content
    assert call(capfd, 0, "inspect", state)["damage"] is None


def test_inspect_of_a_state_without_run_settings(
    compiler: Compiler, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As following makes one."""
    bundle, state = compiler.bundle("llama_tied", "prge"), tmp_path / "state"
    call(capfd, 0, "train", bundle, "--data", data, "--state", state, "--steps", 1)
    (state / "run.json").unlink()
    found = call(capfd, 0, "inspect", state)
    assert (found["settings"], found["data"], found["changes"]) == (None, None, [])
    assert run(["inspect", str(state)]) == 0
    assert "Settings: not kept" in capfd.readouterr().out


def test_held_out_examples(
    compiler: Compiler, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle, state = compiler.bundle("llama_tied", "prge"), tmp_path / "state"
    held_out = tmp_path / "held-out.jsonl"
    # The other way round: what is learned is wrong here.
    swapped = data.read_text().replace('"completion": " good"', '"completion": "?"')
    swapped = swapped.replace('"completion": " bad"', '"completion": " good"')
    held_out.write_text(swapped.replace('"completion": "?"', '"completion": " bad"'))

    def train(code: int, steps: int, *others: object) -> Any:
        arguments = ("--data", data, "--state", state, "--steps", steps, *others)
        return call(capfd, code, "train", bundle, *arguments)

    assert train(2, 4, "--patience", 2)["error"]["found"] == "no eval_data"
    settings = ("--set", "learning_rate=0.05", "--set", "loss=choices")
    found = train(0, 30, "--eval-data", held_out, "--eval-every", 3, "--patience", 2, *settings)
    evaluations = found["evaluations"]
    assert set(evaluations[0]) == {"step", "loss", "accuracy", "token_accuracy", "margin"}
    assert [one["step"] for one in evaluations] == list(range(0, found["steps"] + 1, 3))
    best = min(evaluations[1:], key=lambda one: one["loss"])
    assert found["best_step"] == best["step"] < found["steps"] < 30

    evaluate = ("eval", bundle, "--data", held_out, "--state", state, "--set", "loss=choices")
    assert call(capfd, 0, *evaluate)["loss"] == best["loss"]
    assert call(capfd, 0, *evaluate, "--last")["loss"] == evaluations[-1]["loss"]
    export = ("adapter", "export", bundle, "--state", state)
    assert call(capfd, 0, *export, "-o", tmp_path / "best")["steps"] == best["step"]
    assert call(capfd, 0, *export, "-o", tmp_path / "last", "--last")["steps"] == found["steps"]
    again = train(0, 30, "--eval-data", held_out)
    assert again["evaluations"] == evaluations and again["steps"] == found["steps"]
    assert "held-out examples" in train(1, 30)["error"]["found"]
    assert run(["train", str(bundle), "--data", str(data), "--state", str(state), "--steps", "30",
                "--eval-data", str(held_out)]) == 0  # fmt: skip
    shown = capfd.readouterr().out
    assert f"at step {best['step']}, the best" in shown and "steps early" in shown
    assert run(["inspect", str(state)]) == 0
    assert f"at step {best['step']}" in capfd.readouterr().out
