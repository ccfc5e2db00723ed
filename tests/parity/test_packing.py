"""pack=true through the command line's code, the runner and a job: one log, one digest, one loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.runner import ran
from tests.support.tiny_models import SENTENCES
from zoexport.api import Bundle

pytestmark = pytest.mark.parity


def test_a_bundle_that_packs_does_so_everywhere(compiler: Compiler, tmp_path: Path) -> None:
    """And the loss of a row is that of its tokens in one text, as far as they go."""
    bundle = compiler.bundle("llama", "mebp", pack=True, max_length=24, generate=True)
    data = tmp_path / "texts.jsonl"
    lines: list[dict[str, Any]] = [{"text": " ".join(SENTENCES[:3])}]
    lines += [{"text": sentence[:8]} for sentence in SENTENCES]
    lines += [{"prompt": sentence[:5], "completion": " great"} for sentence in SENTENCES]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    opened = Bundle.open(bundle)
    ours = opened.train(data, state=tmp_path / "ours", steps=6, eval_data=data, eval_every=3)
    options = ("--data", data, "--state", tmp_path / "runner", "--eval-data", data)
    theirs = ran("train", bundle, *options, "--eval-every", 3, "--steps", 6)
    assert theirs["losses"] == ours.losses
    assert theirs["evaluations"] == ours.evaluations
    for name in ("trajectory.log", "run.json", "evaluations.json"):
        found = [(tmp_path / side / name).read_bytes() for side in ("ours", "runner")]
        assert found[0] == found[1], name
    settings = json.loads((tmp_path / "ours" / "run.json").read_text())["settings"]
    assert settings["pack"] is True
    apart = opened.evaluate(data, settings={"pack": False})
    packed = opened.evaluate(data)
    assert packed.examples < apart.examples == len(lines)
    assert packed.shortened == 0 and apart.shortened > 0


def test_a_run_keeps_its_packing(compiler: Compiler, tmp_path: Path) -> None:
    """Resumed without a word it goes on; with another one it is refused, as its rows are other examples."""
    bundle = compiler.bundle("llama", "mebp", max_length=24, generate=True)
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES))
    opened = Bundle.open(bundle)
    state = tmp_path / "state"
    chosen = {"pack": True, "lr_scheduler_type": "constant"}
    opened.train(data, state=state, steps=2, settings=chosen)
    opened.train(data, state=state, steps=4)
    with pytest.raises(Exception, match=r"pack true.* expected pack false"):
        opened.train(data, state=state, steps=6, settings={"pack": False})
    whole = opened.train(data, state=tmp_path / "whole", steps=4, settings=chosen)
    resumed = opened.train(data, state=state, steps=4)
    assert resumed.losses == whole.losses
    run = ("--data", data, "--state", tmp_path / "runner")
    ran(
        "train",
        bundle,
        *run,
        "--steps",
        2,
        "--set",
        "pack=true",
        "--set",
        "lr_scheduler_type=constant",
    )
    assert ran("train", bundle, *run, "--steps", 4)["losses"] == whole.losses
