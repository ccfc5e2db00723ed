"""SensZOQ on the real model and the real sentences, through the command line as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slow.conftest import MODEL
from tests.support.verbs import verb
from zoexport.samples import Samples

pytestmark = [pytest.mark.slow, pytest.mark.network]
SETTINGS = ("--set", "loss=choices", "--set", "activations=fp32")
STEPS = 60


@pytest.fixture(scope="module")
def mask(folder: Path) -> Path:
    """Chosen by a few short texts of the corpus."""
    path = folder / "smollm2.mask"
    few = ("--set", "sequences=4", "--set", "seq_len=64")
    made = verb("sensitivity", MODEL, *few, "-o", path)
    assert made["chosen"] == round(1e-3 * made["weights"])
    return path


@pytest.fixture(scope="module")
def bundle(folder: Path, mask: Path) -> Path:
    bundle = folder / "senszoq"
    arguments = ("--method", "senszoq", "--target", "android-cpu", "--set", f"mask={mask}")
    compiled = verb("compile", MODEL, *arguments, *SETTINGS, "-o", bundle)
    assert not any(compiled["fallback_ops"].values())
    return bundle


def test_a_step_is_the_references(bundle: Path) -> None:
    report = verb("parity", bundle, "--steps", 1)
    assert report["passed"] is True
    assert report["max_relative_loss_error"] <= 1e-4


def test_it_learns(folder: Path, bundle: Path, samples: Samples, held_out: Path) -> None:
    """docs/senszoq.md has it beside P-RGE over the same steps, with more seeds and rates."""
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
    """The other column of the table in docs/senszoq.md: the same steps, weights and activations."""
    bundle, state = folder / "senszoq-prge", folder / "senszoq-prge-state"
    settings = (*SETTINGS, "--set", "split=layers", "--set", "lr=5e-3")
    verb("compile", MODEL, "--method", "prge", "--target", "android-cpu", *settings, "-o", bundle)
    before = verb("eval", bundle, "--data", held_out)["loss"]
    verb("train", bundle, "--data", samples.train, "--state", state, "--steps", STEPS)
    assert verb("eval", bundle, "--data", held_out, "--state", state)["loss"] <= 0.85 * before
