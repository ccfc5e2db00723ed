"""The verbs one after another on a tiny model, each as its own process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import save_tiny

pytestmark = pytest.mark.slow

STEPS = 40
#: Enough for a run that is certainly still going when a signal comes.
MANY = 1_000_000


def start(*arguments: object) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "zoexport", *map(str, arguments), "--json"]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def verb(*arguments: object, code: int = 0) -> Any:
    """The one object that a verb prints."""
    process = start(*arguments)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    (line,) = out.splitlines()
    return json.loads(line)


def adapter_of(bundle: Path, state: Path, folder: Path) -> bytes:
    """The adapter of a state as the bytes of its file: equal only when every value is."""
    verb("adapter", "export", bundle, "--state", state, "-o", folder)
    return (folder / "adapter_model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("round")
    model = save_tiny("llama", folder / "model")
    settings = ("weights=fp32", "max_length=32", "num_queries=2", "batch_size=2", "loss=choices")
    sets = [part for setting in settings for part in ("--set", setting)]
    result = verb(
        "compile", model, "--target", "host", "--method", "prge", *sets, "-o", folder / "bundle"
    )
    assert result["programs"] == ["embedding@32", "layer.0@32", "head"]
    assert result["bytes"] == sum(path.stat().st_size for path in (folder / "bundle").iterdir())
    return folder / "bundle"


@pytest.fixture(scope="module")
def data(bundle: Path) -> Path:
    path = bundle.parent / "data.jsonl"
    choices = [" good", " bad"]
    lines = [
        json.dumps({"prompt": f"number {i}", "completion": choices[i % 2], "choices": choices})
        for i in range(12)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(bundle: Path, data: Path) -> Path:
    """A state of ``STEPS`` steps, trained in one go."""
    state = bundle.parent / "state"
    result = verb("train", bundle, "--data", data, "--state", state, "--steps", STEPS)
    assert (result["steps"], len(result["losses"])) == (STEPS, STEPS)
    assert result["state"] == str(state)
    assert result["step_seconds_median"] > 0
    assert 0 < result["peak_anonymous_mb"] < result["peak_rss_mb"] < 150, "no torch in the process"
    return state


def test_training_goes_on_where_it_stopped(
    bundle: Path, data: Path, trained: Path, tmp_path: Path
) -> None:
    train = ("train", bundle, "--data", data, "--state", tmp_path / "state", "--steps")
    first = verb(*train, 15)
    second = verb(*train, STEPS)
    assert second["losses"][:15] == first["losses"]
    third = verb(*train, STEPS)
    assert third["losses"] == second["losses"]
    assert third["step_seconds_median"] is None
    assert adapter_of(bundle, tmp_path / "state", tmp_path / "a") == adapter_of(
        bundle, trained, tmp_path / "b"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_resumes_as_the_same_run(
    number: signal.Signals, bundle: Path, data: Path, trained: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    process = start("train", bundle, "--data", data, "--state", state, "--steps", MANY)
    log = state / "trajectory.log"
    deadline = time.monotonic() + 60
    # A header and a few records: the run has begun, and is far from STEPS times many.
    while not (log.exists() and log.stat().st_size > 64 + 3 * 28):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    if number is signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 130, err
        assert json.loads(out)["error"]["exit_code"] == 130
    # To a number of steps that both runs can reach.
    reached = (log.stat().st_size - 64) // 28
    total = max(reached + 5, STEPS)
    verb("train", bundle, "--data", data, "--state", state, "--steps", total)
    whole = tmp_path / "whole"
    verb("train", bundle, "--data", data, "--state", whole, "--steps", total)
    assert adapter_of(bundle, state, tmp_path / "a") == adapter_of(bundle, whole, tmp_path / "b")


def test_a_killed_run_with_held_out_examples_ends_in_the_same_files(
    bundle: Path, data: Path, tmp_path: Path
) -> None:
    def arguments(name: str, steps: int) -> tuple[object, ...]:
        given = ("--data", data, "--state", tmp_path / name, "--steps", steps)
        return ("train", bundle, *given, "--eval-data", data, "--eval-every", 2)

    process = start(*arguments("killed", MANY))
    found = tmp_path / "killed" / "evaluations.json"
    deadline = time.monotonic() + 60
    while not (found.exists() and found.read_text().count('"step"') > 3):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.wait()
    process.communicate()
    total = ((tmp_path / "killed" / "trajectory.log").stat().st_size - 64) // 28 + 5
    results = [verb(*arguments(name, total)) for name in ("killed", "whole")]
    for key in ("evaluations", "best_step", "losses"):
        assert results[0][key] == results[1][key]
    for name in ("evaluations.json", "trajectory.log"):
        files = [tmp_path / state / name for state in ("killed", "whole")]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    adapters = [adapter_of(bundle, tmp_path / n, tmp_path / f"a-{n}") for n in ("killed", "whole")]
    assert adapters[0] == adapters[1]


def test_an_exported_adapter_comes_back(
    bundle: Path, data: Path, trained: Path, tmp_path: Path
) -> None:
    exported = adapter_of(bundle, trained, tmp_path / "adapter")
    state = tmp_path / "imported"
    adopt = ("adapter", "import", bundle, "--adapter", tmp_path / "adapter", "--state", state)
    assert verb(*adopt)["state"] == str(state)
    assert adapter_of(bundle, state, tmp_path / "again") == exported
    evaluate = ("eval", bundle, "--data", data, "--state")
    assert verb(*evaluate, state) == verb(*evaluate, trained)
    assert "already there" in verb(*adopt, code=2)["error"]["message"]
    verb("train", bundle, "--data", data, "--state", state, "--steps", 2)
    verb(*adopt, "--force")
    assert adapter_of(bundle, state, tmp_path / "anew") == exported


def test_eval_reports_all_keys_and_takes_the_loss(bundle: Path, data: Path) -> None:
    choices = verb("eval", bundle, "--data", data)
    assert set(choices) >= {"loss", "accuracy", "token_accuracy", "examples", "shortened"}
    assert choices["examples"] == 12
    full = verb("eval", bundle, "--data", data, "--set", "loss=full")
    assert full["accuracy"] == choices["accuracy"]
    assert full["loss"] != choices["loss"]


def test_bad_input_to_training_leaves_no_state(bundle: Path, data: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    bad = tmp_path / "bad.jsonl"
    (fine, *_) = data.read_text().splitlines()
    bad.write_text(fine + '\n{"text": }\n')
    train = ("train", bundle, "--state", state, "--steps", 3, "--data")
    assert f"{bad}:2" in verb(*train, bad, code=1)["error"]["where"]
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert "no examples" in verb(*train, empty, code=1)["error"]["found"]
    assert "compiled" in verb(*train, data, "--set", "max_length=64", code=2)["error"]["found"]
    assert (
        "learning_rate" in verb(*train, data, "--set", "learning_rate=0", code=2)["error"]["where"]
    )
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "no choices here"}\n')
    error = verb(*train, text, code=1)["error"]
    assert error["where"] == f"{text}:1" and "choices" in error["found"]
    assert not state.exists()


def test_a_state_of_another_bundle_is_refused(
    bundle: Path, data: Path, trained: Path, tmp_path: Path
) -> None:
    other = tmp_path / "bundle"
    sets = ("--set", "weights=fp32", "--set", "max_length=16", "--set", "num_queries=1")
    verb(
        "compile",
        bundle.parent / "model",
        "--target",
        "host",
        "--method",
        "prge",
        *sets,
        "-o",
        other,
    )
    before = (trained / "trajectory.log").read_bytes()
    train = ("train", other, "--data", data, "--state", trained, "--steps", STEPS + 1)
    assert "bundle" in str(verb(*train, code=1)["error"])
    assert (trained / "trajectory.log").read_bytes() == before
