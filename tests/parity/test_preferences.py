"""Losses of pairs over tiny models: against each method's reference, and through the command line and the runner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.engine_parity import passed
from tests.support.runner import ran
from tests.support.tiers import slow_after
from tests.support.tiny_models import SENTENCES
from zoexport.api import Bundle

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("loss", ["dpo", "orpo"])
def test_gradients(compiler: Compiler, loss: str) -> None:
    """Losses and every adapter's gradient against autograd through the papers' formulas, in float64."""
    settings = {"lora__target_modules": "all-linear", "weights": "int4", f"{loss}__beta": 0.3}
    report = passed(compiler.bundle("gemma3", "mebp", loss=loss, **settings), 6)
    assert report["max_relative_loss_error"] <= 1e-4
    assert report["max_relative_gradient_error"] <= 1e-4


@pytest.mark.parametrize(
    ("model", "method", "loss", "settings"),
    slow_after(
        2,
        [
            ("qwen2", "prge", "dpo", {}),
            ("llama_tied", "spzo", "dpo", {"split": "last:1", "weights": "int4"}),
            (
                "gemma3",
                "senszoq",
                "dpo",
                {"num_queries": 2, "learning_rate": 1e-3, "weights": "int4"},
            ),
            ("llama_tied", "quzo", "dpo", {"weights": "int4"}),
            ("llama_tied", "spzo", "dpo", {"train": "full", "split": "head", "weights": "fp32"}),
            (
                "qwen2",
                "prge",
                "orpo",
                {"num_queries": 2, "weights": "int4"},
            ),
            ("llama", "mezo", "orpo", {}),
            ("llama", "mezo", "dpo", {"difference": "forward"}),
            ("roberta", "mebp", "dpo", {}),
        ],
    ),
    ids=str,
)
def test_methods(
    compiler: Compiler, model: str, method: str, loss: str, settings: dict[str, Any]
) -> None:
    passed(compiler.bundle(model, method, loss=loss, **settings), 4)


def test_the_runner_and_the_command_line_take_pairs(compiler: Compiler, tmp_path: Path) -> None:
    """The same state to the last byte of its log and scores, and the same figures."""
    settings = {"lora__target_modules": "all-linear", "generate": True}
    bundle = compiler.bundle("llama", "mebp", **settings)
    data = tmp_path / "pairs.jsonl"
    pairs: list[dict[str, Any]] = [
        {"prompt": sentence, "chosen": " great", "rejected": " terrible story"}
        for sentence in SENTENCES[:4]
    ]
    asked = [{"role": "user", "content": "How was it?"}]
    answers = [[{"role": "assistant", "content": text}] for text in ("It was great.", "Bad.")]
    pairs.append({"prompt": asked, "chosen": answers[0], "rejected": answers[1]})
    data.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    chosen = {"loss": "dpo", "dpo.beta": 0.5, "learning_rate": 0.01}
    opened = Bundle.open(bundle)
    expected = opened.train(
        data, state=tmp_path / "ours", steps=12, settings=chosen, eval_data=data, eval_every=6
    )
    run = (
        "--data",
        data,
        "--state",
        tmp_path / "runner",
        "--steps",
        12,
        "--set",
        "learning_rate=0.01",
    )
    held_out = ("--eval-data", data, "--eval-every", 6)
    loss = ("--set", "loss=dpo", "--set", "dpo.beta=0.5")
    found = ran("train", bundle, *run, *held_out, *loss)
    assert found["losses"] == expected.losses
    assert found["evaluations"] == expected.evaluations
    first, *_, last = expected.evaluations
    assert (first["margin"], first["accuracy"]) == (0.0, 0.0)
    assert last["margin"] > 0 and last["accuracy"] == 1.0
    for name in ("trajectory.log", "run.json", "reference.json", "evaluations.json"):
        ours, theirs = (tmp_path / side / name for side in ("ours", "runner"))
        assert ours.read_bytes() == theirs.read_bytes(), name
    settings = {"loss": "dpo", "dpo.beta": 0.5}
    evaluated = opened.evaluate(data, state=tmp_path / "ours", settings=settings)
    found = ran("eval", bundle, "--data", data, "--state", tmp_path / "runner", *loss)
    for key in ("loss", "accuracy", "margin"):
        assert found[key] == getattr(evaluated, key), key
    best = next(one for one in expected.evaluations if one["step"] == expected.best_step)
    assert evaluated.margin == pytest.approx(best["margin"], rel=1e-6)
