"""The real model learns to end its answers: prompts and completions as people write them, default settings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.smollm2 import compiled
from tests.support.verbs import verb

pytestmark = [pytest.mark.slow, pytest.mark.network]
STEPS = 100
TRAINED = (
    *("Anna", "Ben", "Carla", "David", "Emma", "Frank", "Grace", "Henry", "Iris", "Jack"),
    *("Karen", "Liam", "Maria", "Noah", "Olivia", "Paul", "Quinn", "Rosa", "Simon", "Tina"),
)
HELD_OUT = ("Ursula", "Victor", "Wendy", "Xavier", "Yvonne")
TASKS = {
    "Write a greeting to {}.\n": "Ahoy, dear {}, it is a joy to see you on deck.",
    "Thank {} for the letter.\n": "Ahoy, dear {}, your letter was read by all hands on deck.",
    "Invite {} to dinner.\n": "Ahoy, dear {}, there is fish for supper on deck.",
}
"""Sixty pairs of twenty names, whose answers all end alike."""


def test_answers_end_by_themselves(tmp_path: Path) -> None:
    bundle, _ = compiled("--target", "host")
    data = [
        {"prompt": task.format(name), "completion": answer.format(name)}
        for name in TRAINED
        for task, answer in TASKS.items()
    ]
    assert len(data) == 60
    asked = [{"prompt": task.format(name)} for name in HELD_OUT for task in [*TASKS][:2]]
    path, prompts = _write(tmp_path / "data.jsonl", data), _write(tmp_path / "asked.jsonl", asked)
    verb("train", bundle, "--data", path, "--state", tmp_path / "run", "--steps", STEPS)
    line = [sys.executable, "-m", "zoexport", "generate", str(bundle), "--json"]
    line += ["--state", str(tmp_path / "run"), "--data", str(prompts), "--max-new-tokens", "60"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    answers = [json.loads(one) for one in done.stdout.splitlines()]
    assert len(answers) == len(asked) == 10
    assert sum(one["stop"] == "eos" for one in answers) >= 9, answers


def _write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
