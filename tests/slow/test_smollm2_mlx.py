"""The real model as MLX functions, through the command line as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.smollm2 import compiled
from tests.support.verbs import verb
from zoexport.data.samples import Samples

pytestmark = [pytest.mark.slow, pytest.mark.network]
# MLX's products on a CPU take some seconds for rows of 256 tokens and one layer.
SHORT = ("--set", "max_length=48", "--set", "lora.target_modules=all-linear")


def test_mebp_takes_steps(folder: Path, samples: Samples) -> None:
    state = folder / "state"
    bundle, said = compiled("--target", "ios-mlx", *SHORT)
    assert said["method"] == "mebp"
    report = verb("parity", bundle, "--steps", 1)
    assert report["passed"] is True
    assert report["max_relative_gradient_error"] <= 1e-4
    trained = verb("train", bundle, "--data", samples.train, "--state", state, "--steps", 2)
    assert trained["steps"] == 2 and len(trained["losses"]) == 2
    exported = folder / "adapter"
    verb("adapter", "export", bundle, "--state", state, "--format", "mlx", "-o", exported)
    assert (exported / "adapters.safetensors").stat().st_size > 0
