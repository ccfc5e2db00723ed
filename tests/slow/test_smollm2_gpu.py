"""The real model on zoexport's Vulkan engine, on whatever device Vulkan has; a CPU takes minutes for its steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.smollm2 import MODEL, compiled
from tests.support.verbs import verb
from zoexport.session import Dataset, Session
from zoexport.targets.vulkan.lower import FILE

pytestmark = [pytest.mark.slow, pytest.mark.network]
ALL_LINEAR = ("--target", "android-gpu", "--set", "lora.target_modules=all-linear")
SHORT = ("--set", "max_length=16", "--set", "batch_size=1")
ROWS = ("--set", "max_length=64", "--set", "batch_size=1")
LONG = ("--set", "max_length=256", "--set", "batch_size=1")
MOST_BYTES = 50_000_000


def test_gradients_over_int4_weights() -> None:
    """All 420 tensors of the adapters, against autograd in PyTorch."""
    bundle, said = compiled(*ALL_LINEAR, *SHORT)
    assert said["method"] == "mebp"
    report = verb("parity", bundle, "--steps", 1)
    assert report["runner"] == "session (vulkan)"
    assert report["max_relative_loss_error"] <= 1e-4
    assert report["max_relative_gradient_error"] <= 1e-4
    assert report["passed"] is True


def test_gradients_in_fp16() -> None:
    """Over the 256 labels that parity takes of rounded arithmetic, in rows as long as a shader's tile."""
    bundle, _ = compiled(*ALL_LINEAR, *ROWS, "--set", "compute=fp16")
    report = verb("parity", bundle, "--steps", 1)
    assert report["max_relative_loss_error"] <= 1e-3
    assert report["max_relative_gradient_error"] <= 2e-2
    assert report["passed"] is True


@pytest.fixture(scope="module")
def long() -> Path:
    """A bundle for rows of up to 256 tokens."""
    return compiled(*ALL_LINEAR, *LONG)[0]


def test_memory_on_the_device_is_what_was_planned(long: Path) -> None:
    """Of 256 tokens, each of them a label; a row of few tokens is given the same buffers."""
    content = json.loads((long / FILE).read_text())
    pool = 4 * max(program["words"] for program in content["programs"].values())
    planned = pool + sum(content["windows"])
    assert planned <= MOST_BYTES
    parts = verb("plan", MODEL, *ALL_LINEAR, *LONG)["breakdown"]["anonymous"]
    assert parts["programs"] == pytest.approx(pool / 1e6, abs=0.05)
    assert parts["windows of weights"] == pytest.approx(sum(content["windows"]) / 1e6, abs=0.05)
    with Session.open(long) as session, Dataset() as examples:
        examples.add([([1, 2, 3], [2, 3, 4])], 0)
        assert session.info.device_bytes == 0
        session.evaluate(examples)
        # Beside them there is where row programs find their tensors, and what a driver rounds up to.
        assert planned <= session.info.device_bytes <= planned + 1_000_000
