"""``zoexport-runner`` over data files as people write them: the runs of the command line, byte for byte."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.runner import ran
from tests.support.tiny_models import SENTENCES
from zoexport.api import Bundle
from zoexport.core.native import runner_path

pytestmark = pytest.mark.parity
LINES: list[dict[str, Any]] = [
    *({"text": sentence} for sentence in SENTENCES[:4]),
    {"prompt": SENTENCES[0], "completion": " great", "choices": [" great", " terrible story"]},
    {"prompt": "How was it?" * 30, "completion": " Fine."},
    {
        "messages": [
            {"role": "user", "content": "How was it?"},
            {"role": "assistant", "content": "It was great."},
        ]
    },
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES), "utf-8")
    return path


def test_a_run_is_that_of_the_command_line(compiler: Compiler, data: Path, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama", "mebp", lora__target_modules="all-linear", generate=True)
    expected = Bundle.open(bundle).train(data, state=tmp_path / "ours", steps=6)
    found = ran("train", bundle, "--data", data, "--state", tmp_path / "runner", "--steps", 6)
    assert found["losses"] == expected.losses and found["shortened"] == expected.shortened > 0
    for name in ("trajectory.log", "run.json"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "runner" / name).read_bytes()
    evaluated = Bundle.open(bundle).evaluate(data, state=tmp_path / "ours")
    found = ran("eval", bundle, "--data", data, "--state", tmp_path / "runner")
    assert (found["loss"], found["accuracy"]) == (evaluated.loss, evaluated.accuracy)


def test_data_that_cannot_be_used_leaves_no_state(
    compiler: Compiler, data: Path, tmp_path: Path
) -> None:
    bundle = compiler.bundle("llama", "mebp", lora__target_modules="all-linear", generate=True)
    run = ("--state", tmp_path / "state", "--steps", 3)
    for more, part in (((), "no 'completion'"), (("--set", "loss=choices"), "no 'choices'")):
        if not more:
            data.write_text('{"prompt": "a"}\n')
        else:
            data.write_text('{"text": "It was great"}\n')
        found = ran("train", bundle, "--data", data, *run, *more, code=1)
        assert found["error"]["where"] == f"{data}:1" and part in found["error"]["found"]
        assert not (tmp_path / "state").exists()
    both = [runner_path(), "train", "--bundle", bundle, "--data", data, "--examples", data, *run]
    done = subprocess.run(list(map(str, both)), capture_output=True, text=True)
    assert done.returncode == 2 and "option --data: found --examples too" in done.stderr
