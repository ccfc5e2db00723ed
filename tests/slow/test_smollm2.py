"""The real model and the real sentences, through the command line as a user runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.slow.conftest import HELD_OUT
from tests.support.smollm2 import MODEL, compiled
from tests.support.transformers_examples import tokenize_file
from tests.support.verbs import run, verb
from zoexport import models
from zoexport.data.samples import Samples

pytestmark = [pytest.mark.slow, pytest.mark.network]
RECIPE = "smollm2-135m-prge"


@pytest.fixture(scope="module")
def int4() -> Path:
    """The bundle of the recipe."""
    method = ("--method", "prge", "--recipe", RECIPE)
    bundle, said = compiled("--target", "android-cpu", *method)
    assert said["delegates"] == 0 and not any(said["fallback_ops"].values())
    # Products of int4 weights and rounded inputs, those of one input together.
    required = json.loads((bundle / "manifest.json").read_text("utf-8"))["required_ops"]
    products = {f"zoexport::rounded_{name}.out" for name in ("linear", "linears_2", "linears_3")}
    assert products <= set(required)
    return bundle


@pytest.fixture(scope="module")
def fp32() -> Path:
    """An fp32 bundle of one row, for exact comparisons."""
    settings = ("--set", "weights=fp32", "--set", "batch_size=1")
    return compiled("--target", "host", "--method", "prge", *settings)[0]


def test_it_learns(int4: Path, folder: Path, samples: Samples, held_out: Path) -> None:
    before = verb("eval", int4, "--data", held_out)
    assert before["examples"] == HELD_OUT
    trained = verb(
        "train", int4, "--data", samples.train, "--state", folder / "state", "--steps", 150
    )
    assert len(trained["losses"]) == trained["steps"] == 150
    after = verb("eval", int4, "--data", held_out, "--state", folder / "state")
    # Chance is 0.693 and one half.
    assert after["loss"] <= 0.62
    assert after["accuracy"] >= before["accuracy"] + 0.08


@pytest.mark.parametrize("loss", ["choices", "full"])
def test_a_far_too_high_rate_stops_by_itself(
    int4: Path, folder: Path, samples: Samples, loss: str
) -> None:
    state = folder / f"diverged-{loss}"
    settings = ("--set", "learning_rate=1", "--set", f"loss={loss}")
    done = run("train", int4, "--data", samples.train, "--state", state, "--steps", 100, *settings)
    assert done.returncode == 3
    error = json.loads(done.stdout)["error"]
    back = re.search(r"^Lower learning_rate .* back at (\d+) steps", error["fix"])
    assert back is not None and int(back[1]) <= 5
    # The last good state: training goes on from it at a sensible rate.
    sensible = ("--set", "learning_rate=0.005", "--change-settings", "--steps", int(back[1]) + 1)
    verb("train", int4, "--data", samples.train, "--state", state, *sensible)


def test_parity_of_int4_and_int8(int4: Path) -> None:
    report = verb("parity", int4, "--steps", 4)
    assert report["max_relative_loss_error"] <= 5e-3
    assert report["passed"] is True


def test_parity_of_fp32_over_20_steps(fp32: Path) -> None:
    report = verb("parity", fp32, "--steps", 20)
    assert report["steps"] == 20
    assert report["max_relative_loss_error"] <= 1e-4
    assert report["max_relative_state_error"] <= 1e-3
    assert report["passed"] is True


def test_peft_evaluates_the_exported_adapter_alike(
    fp32: Path, folder: Path, samples: Samples, held_out: Path
) -> None:
    import peft

    state, adapter = folder / "fp32-state", folder / "fp32-adapter"
    verb(
        "train",
        fp32,
        "--data",
        samples.train,
        "--state",
        state,
        "--steps",
        10,
        "--set",
        "learning_rate=1e-2",
    )
    verb("adapter", "export", fp32, "--state", state, "--format", "peft", "-o", adapter)
    few = folder / "few.jsonl"
    few.write_text("".join(held_out.read_text(encoding="utf-8").splitlines(keepends=True)[:40]))
    ours = verb("eval", fp32, "--data", few, "--state", state)

    loaded = models.load(models.resolve(MODEL))
    examples = tokenize_file(few, fp32, 64).examples
    plain = _loss(loaded.model, examples)
    theirs = _loss(peft.PeftModel.from_pretrained(loaded.model, str(adapter)), examples)
    assert abs(theirs - ours["loss"]) <= 1e-3 * theirs
    assert abs(plain - theirs) > 1e-2 * theirs  # the adapter is not nothing

    imported = folder / "imported"
    verb("adapter", "import", fp32, "--adapter", adapter, "--state", imported)
    again = verb("eval", fp32, "--data", few, "--state", imported)
    assert again["loss"] == pytest.approx(ours["loss"], rel=1e-6)


def _loss(model: Any, examples: list[Any]) -> float:
    total = 0.0
    for example in examples:
        candidate = example.candidates[example.target]
        labels = torch.tensor(candidate.labels)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([candidate.tokens])).logits[0]
        chosen = labels >= 0
        total += float(torch.nn.functional.cross_entropy(logits[chosen], labels[chosen]))
    return total / len(examples)
