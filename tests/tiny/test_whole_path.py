"""The whole path of a two-layer model by the command line: compile, train, resume, generate, parity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import save_tiny
from zoexport.cli.main import run

STEPS = 4


@pytest.mark.parametrize("method", ["mebp", "prge"])
def test_a_model_trains_resumes_and_generates(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def verb(*arguments: object) -> Any:
        assert run([*map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    bundle, data = tmp_path / "model.bundle", tmp_path / "train.jsonl"
    save_tiny("llama", tmp_path / "model")
    pairs = [{"prompt": f"The film {number} is", "completion": " good"} for number in range(8)]
    data.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))

    settings = ("max_length=24", "batch_size=2", "lora.r=4", "generate=true")
    chosen = [part for setting in settings for part in ("--set", setting)]
    compiled = verb(
        "compile", tmp_path / "model", "--target", "host", "--method", method, *chosen, "-o", bundle
    )
    assert compiled["verified"]["passed"]

    def train(state: str, steps: int) -> list[float]:
        options = ("--data", data, "--set", "lr_scheduler_type=constant", "--steps", steps)
        losses: list[float] = verb("train", bundle, *options, "--state", tmp_path / state)["losses"]
        return losses

    whole = train("whole", STEPS)
    assert len(whole) == STEPS
    train("resumed", STEPS // 2)
    assert train("resumed", STEPS)[-1] == whole[-1]

    made, again = (
        verb(
            "generate",
            bundle,
            "--state",
            tmp_path / state,
            "--prompt",
            "The film",
            "--max-new-tokens",
            5,
        )
        for state in ("whole", "resumed")
    )
    assert made["tokens"] == again["tokens"]

    assert verb("parity", bundle, "--steps", 2)["passed"]
