"""The real model as a Core ML package, through the command line as a user runs it."""

from __future__ import annotations

import pytest

from tests.support.smollm2 import compiled
from tests.support.verbs import verb

pytestmark = [pytest.mark.slow, pytest.mark.network]
WEIGHTS = "model.mlpackage/Data/com.apple.CoreML/weights/weight.bin"


def test_a_step_of_all_layers() -> None:
    """Thirty layers forward and backward in fp16, 32 tokens; tiny models have fp32."""
    bundle, _ = compiled("--target", "ios-coreml", "--set", "max_length=32")
    # 134.5 million weights: codes of 4 bits, and a scale of 2 bytes for each 32.
    assert (bundle / WEIGHTS).stat().st_size <= 1.05 * 134.5e6 * (0.5 + 2 / 32)
    report = verb("parity", bundle, "--steps", 1)
    assert report["passed"] is True
    # Not 0: gradients that are no numbers, or all zero, would be.
    assert 0 < report["max_relative_gradient_error"] <= 2e-2
