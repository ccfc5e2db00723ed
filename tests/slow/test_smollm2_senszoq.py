"""SensZOQ on the real model and the real sentences, through the command line as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cache import cached
from tests.support.smollm2 import MODEL, compiled
from tests.support.verbs import verb
from zoexport.data.samples import Samples

pytestmark = [pytest.mark.slow, pytest.mark.network]
SETTINGS = ("--set", "loss=choices", "--set", "activations=fp32")
STEPS = 60


@pytest.fixture(scope="module")
def mask() -> Path:
    """Chosen by a few short texts of the corpus."""
    few = ("--set", "sequences=4", "--set", "max_length=64")
    folder, made = cached(
        {"sensitivity": MODEL, "arguments": few},
        lambda folder: verb("sensitivity", MODEL, *few, "-o", folder / "mask"),
    )
    assert made["chosen"] == round(1e-3 * made["weights"])
    return folder / "mask"


@pytest.fixture(scope="module")
def bundle(mask: Path) -> Path:
    arguments = ("--method", "senszoq", "--target", "android-cpu", "--set", f"mask={mask}")
    bundle, said = compiled(*arguments, *SETTINGS)
    assert not any(said["fallback_ops"].values())
    return bundle


def test_a_step_is_the_references(bundle: Path) -> None:
    report = verb("parity", bundle, "--steps", 1)
    assert report["passed"] is True
    assert report["max_relative_loss_error"] <= 1e-4


def test_it_learns(folder: Path, bundle: Path, samples: Samples, held_out: Path) -> None:
    """docs/methods.md has it beside P-RGE over the same steps, with more seeds and rates."""
    before = verb("eval", bundle, "--data", held_out)["loss"]
    state = folder / "senszoq-state"
    trained = verb("train", bundle, "--data", samples.train, "--state", state, "--steps", STEPS)
    # The slot, twice, and its places: 8 bytes for each of 106168 weights.
    assert trained["peak_anonymous_mb"] <= 110
    assert verb("eval", bundle, "--data", held_out, "--state", state)["loss"] <= 0.85 * before
    out = folder / "senszoq-out"
    exported = verb("adapter", "export", bundle, "--state", state, "-o", out)
    assert (exported["format"], exported["steps"]) == ("sparse", STEPS)


def test_prge_learns_beside_it(folder: Path, samples: Samples, held_out: Path) -> None:
    """The other column of the table in docs/methods.md: the same steps, weights and activations."""
    state = folder / "senszoq-prge-state"
    settings = (*SETTINGS, "--set", "granularity=layer", "--set", "learning_rate=5e-3")
    bundle, _ = compiled("--method", "prge", "--target", "android-cpu", *settings)
    before = verb("eval", bundle, "--data", held_out)["loss"]
    verb("train", bundle, "--data", samples.train, "--state", state, "--steps", STEPS)
    assert verb("eval", bundle, "--data", held_out, "--state", state)["loss"] <= 0.85 * before
