"""The real model as a Core ML package, through the command line as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slow.conftest import MODEL
from tests.support.verbs import verb

pytestmark = [pytest.mark.slow, pytest.mark.network]
WEIGHTS = "model.mlpackage/Data/com.apple.CoreML/weights/weight.bin"


@pytest.mark.parametrize(("compute", "most"), [("fp32", 1e-4), ("fp16", 2e-2)])
def test_a_step_of_all_layers(folder: Path, compute: str, most: float) -> None:
    """Thirty layers forward and backward, 32 tokens."""
    bundle = folder / compute
    settings = ("--set", f"compute={compute}", "--set", "seq_len=32")
    verb("compile", MODEL, "--target", "ios-coreml", *settings, "-o", bundle)
    # 134.5 million weights: codes of 4 bits, and a scale for each 32.
    scale = 2 if compute == "fp16" else 4
    packed = 134.5e6 * (0.5 + scale / 32)
    assert (bundle / WEIGHTS).stat().st_size <= 1.05 * packed
    report = verb("parity", bundle, "--steps", 1)
    assert report["passed"] is True
    assert 0 < report["max_relative_gradient_error"] <= most
