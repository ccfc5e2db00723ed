"""Backpropagation on the real model and the real sentences, through the command line as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.slow.conftest import HELD_OUT
from tests.support.smollm2 import compiled
from tests.support.verbs import verb
from zoexport.data.samples import Samples

pytestmark = [pytest.mark.slow, pytest.mark.network]
RECIPE = "smollm2-135m-mebp"
PAIRS = 40
"""Of each set: as many are enough, and are scored in seconds."""
ALL_LINEAR = ("--set", "lora.target_modules=all-linear")


@pytest.fixture(scope="module")
def all_linear() -> Path:
    """An int4 bundle that adapts every linear layer, at the default length and batch; mebp is the default method."""
    bundle, said = compiled("--target", "android-cpu", *ALL_LINEAR)
    assert said["method"] == "mebp"
    # Nothing but zoexport's own kernels runs, in any program.
    assert not any(said["fallback_ops"].values())
    return bundle


def test_sixty_steps_teach_it(folder: Path, samples: Samples, held_out: Path) -> None:
    bundle, _ = compiled("--target", "android-cpu", "--recipe", RECIPE)
    state = folder / "recipe-state"
    verb("train", bundle, "--data", samples.train, "--state", state, "--steps", 60)
    after = verb("eval", bundle, "--data", held_out, "--state", state)
    assert after["examples"] == HELD_OUT
    assert after["accuracy"] >= 0.78


def test_gradients_over_int4_weights(all_linear: Path) -> None:
    report = verb("parity", all_linear, "--steps", 2)
    assert report["max_relative_gradient_error"] <= 1e-4
    assert report["passed"] is True


def test_gradients_over_fp32_weights_with_accumulation() -> None:
    settings = (
        "--set",
        "weights=fp32",
        "--set",
        "max_length=64",
        "--set",
        "gradient_accumulation_steps=4",
    )
    bundle, _ = compiled("--target", "host", *ALL_LINEAR, *settings)
    report = verb("parity", bundle, "--steps", 2)
    assert report["max_relative_gradient_error"] <= 1e-4
    assert report["passed"] is True


def test_memory_is_that_of_one_layer(all_linear: Path, folder: Path) -> None:
    """Sequence 256, every token a label, AdamW over 4.9 million adapter values."""
    text = folder / "text.jsonl"
    words = " ".join(f"Sentence {n} of a long text." for n in range(80))
    text.write_text(json.dumps({"text": words}) + "\n")
    trained = verb("train", all_linear, "--data", text, "--state", folder / "long", "--steps", 3)
    assert trained["shortened"] == 1
    assert trained["peak_anonymous_mb"] <= 90


def test_pairs_raise_the_margin_of_held_out_ones(
    folder: Path, samples: Samples, held_out: Path
) -> None:
    """The sentences' right words as chosen answers, the others as rejected ones."""
    paths = []
    for path in (samples.train, held_out):
        examples = [json.loads(line) for line in path.read_text("utf-8").splitlines()][:PAIRS]
        paths.append(folder / f"pairs-{path.name}")
        paths[-1].write_text("".join(json.dumps(_pair(example)) + "\n" for example in examples))
    bundle, _ = compiled("--target", "android-cpu", "--recipe", RECIPE, "--set", "batch_size=4")
    run = ("--data", paths[0], "--eval-data", paths[1], "--state", folder / "pairs")
    chosen = ("--set", "loss=dpo", "--set", "learning_rate=2e-3")
    trained = verb("train", bundle, *run, "--steps", 24, "--eval-every", 12, *chosen)
    before, *between, after = trained["evaluations"]
    assert (before["margin"], before["accuracy"]) == (0.0, 0.0)
    assert after["margin"] > 0.1 and after["accuracy"] > 0.6, between
    assert after["loss"] < before["loss"]


def _pair(example: dict[str, Any]) -> dict[str, str]:
    chosen = example["completion"]
    (rejected,) = (choice for choice in example["choices"] if choice != chosen)
    return {"prompt": example["prompt"], "chosen": chosen, "rejected": rejected}
