"""Tiny models of every architecture: the compiled bundle in the session against the reference."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.compiled import Compiler
from tests.support.tiers import slow_after
from zoexport.api import Bundle
from zoexport.core import tolerances
from zoexport.session import Dataset, Session

pytestmark = pytest.mark.parity
STEPS = 20
ARCHITECTURES = (
    "llama",
    "llama_tied",
    "qwen2",
    "qwen3",
    "gemma3",
    "mistral",
    "opt",
    "phi3",
    "gpt2",
    "olmo2",
    "falcon",
)


def compare(bundle: Path, steps: int = STEPS, dump: Path | None = None) -> dict[str, object]:
    """Parity without progress."""
    return Bundle.open(bundle).parity(steps=steps, dump=dump).as_dict()


@pytest.mark.parametrize("name", slow_after(2, ARCHITECTURES))
def test_fp32(compiler: Compiler, name: str) -> None:
    report = compare(compiler.bundle(name))
    assert report["max_relative_loss_error"] <= 1e-4
    assert report["max_relative_state_error"] <= 1e-3
    assert report["passed"] is True


@pytest.mark.parametrize(("queries", "batch"), slow_after(1, [(4, 1), (1, 3), (1, 1)]))
def test_queries_and_batches(compiler: Compiler, queries: int, batch: int) -> None:
    report = compare(compiler.bundle("llama", num_queries=queries, batch_size=batch))
    assert report["passed"] is True
    assert report["bounds"] == {
        "loss": 1e-4,
        "state": 1e-3,
        "gradient": 1e-4,
        "difference": 1e-3,
    }
    assert report["max_relative_gradient_error"] is None
    assert 0 <= report["max_relative_difference_error"] <= 1e-3
    assert 0 < report["difference_resolution"] < 1e-5


def test_mezo(compiler: Compiler) -> None:
    assert compare(compiler.bundle("llama", "mezo"))["passed"] is True


def test_last_layers_and_all_linear_with_choices(compiler: Compiler) -> None:
    bundle = compiler.bundle(
        "qwen2",
        lora__target_modules="all-linear",
        lora__layers_to_transform="last:1",
        loss="choices",
        lora__alpha=8,
    )
    assert compare(bundle)["passed"] is True


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama_tied", "gemma3", "opt", "phi3"])
def test_int4_with_int8_activations(compiler: Compiler, name: str) -> None:
    report = compare(compiler.bundle(name, weights="int4"))
    assert report["max_relative_loss_error"] <= 5e-3
    assert report["passed"] is True


@pytest.mark.parametrize(
    ("weights", "activations"),
    [("int4", "fp32"), pytest.param("int8", "fp32", marks=pytest.mark.slow)],
)
def test_other_numerics(compiler: Compiler, weights: str, activations: str) -> None:
    bundle = compiler.bundle("llama_tied", weights=weights, activations=activations)
    assert compare(bundle)["passed"] is True


def test_a_wrong_reference_fails(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: with the noise of another seed it does."""
    from zoexport.core import rng

    real = rng.normals
    monkeypatch.setattr(rng, "normals", lambda seed, *rest: real(seed + 1, *rest))
    report = compare(compiler.bundle("llama"), steps=3)
    assert report["passed"] is False


def test_the_dump_shows_the_update(compiler: Compiler, tmp_path: Path) -> None:
    """B moves by exactly -rate/q * sum of g_j z_j over the queries of the session's step before, on both sides."""
    compare(compiler.bundle("llama"), steps=3, dump=tmp_path / "dump")
    names = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert names == [
        f"step-{n:04d}.{side}.safetensors" for n in range(3) for side in ("reference", "session")
    ]
    dumped = {
        side: [load_file(tmp_path / "dump" / f"step-{n:04d}.{side}.safetensors") for n in range(3)]
        for side in ("session", "reference")
    }
    pending = [step["gradients"].astype(np.float32) for step in dumped["session"]]
    for steps in dumped.values():
        slots = [name.removeprefix("after.") for name in steps[0] if name.startswith("after.")]
        assert slots
        for gradients, (last, now) in zip(pending, itertools.pairwise(steps), strict=False):
            q = len(gradients)
            assert last["losses"].shape == (2 * q,)
            for slot in slots:
                total = sum(
                    gradients[j] * last[f"noise.{slot}"][j].astype(np.float32) for j in range(q)
                )
                moved = now[f"after.{slot}"] - now[f"before.{slot}"]
                expected = -np.float32(last["learning_rate"][0]) / np.float32(q) * total
                np.testing.assert_array_equal(now[f"before.{slot}"], last[f"after.{slot}"])
                np.testing.assert_allclose(moved, expected, rtol=2e-6, atol=2e-8)
    ours, theirs = (dumped[side][1] for side in ("session", "reference"))
    assert ours.keys() == theirs.keys()
    for name in ours:
        if name.startswith(("noise.", "tokens.", "labels.")):
            np.testing.assert_array_equal(ours[name], theirs[name])


def test_every_bound_has_a_reason() -> None:
    for bound, reason in tolerances._BOUNDS.values():
        assert set(bound) == {
            tolerances.LOSS,
            tolerances.STATE,
            tolerances.GRADIENT,
            tolerances.DIFFERENCE,
        }
        assert len(reason) > 40


def test_forward_differences(compiler: Compiler) -> None:
    """MeZO with one unperturbed loss a step in place of one side of every pair."""
    bundle = compiler.bundle("llama", "mezo", num_queries=3, difference="forward")
    report = compare(bundle)
    assert report["max_relative_loss_error"] <= 1e-4
    assert report["max_relative_state_error"] <= 1e-3
    assert report["passed"] is True
    # Three of a pair's six losses are not computed, and one is added.
    central = compiler.bundle("llama", "mezo", num_queries=3)
    steps = {path: session_losses(path) for path in (bundle, central)}
    assert [len(losses) for losses in steps.values()] == [4, 6]
    np.testing.assert_allclose(steps[bundle][1:], steps[central][::2], rtol=1e-6)


def session_losses(bundle: Path) -> list[float]:
    """Those of the first step on one example."""
    with Session.open(bundle) as session, Dataset() as dataset:
        dataset.add([([1, 2, 3], [2, 3, 4])], 0)
        return list(session.step(dataset, [0]).losses)
