"""Backpropagation on the real model and the real sentences, through the command line as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.slow.conftest import HELD_OUT
from tests.support.smollm2 import compiled
from tests.support.verbs import verb
from zoexport.data.samples import Samples

pytestmark = [pytest.mark.slow, pytest.mark.network]
RECIPE = "smollm2-135m-mebp"
ALL_LINEAR = ("--set", "lora.targets=all-linear")


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
    settings = ("--set", "weights=fp32", "--set", "seq_len=64", "--set", "accumulate=4")
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
