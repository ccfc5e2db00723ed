"""The real model as MLX functions, through the command line as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slow.conftest import MODEL
from tests.support.verbs import verb
from zoexport.bench.mlx_streaming import measure
from zoexport.samples import Samples

pytestmark = [pytest.mark.slow, pytest.mark.network]
# MLX's products on a CPU take some seconds for rows of 256 tokens and one layer.
SHORT = ("--set", "seq_len=48", "--set", "lora.targets=all-linear")


def test_mebp_takes_steps(folder: Path, samples: Samples) -> None:
    bundle, state = folder / "mebp", folder / "state"
    compiled = verb("compile", MODEL, "--target", "ios-mlx", *SHORT, "-o", bundle)
    assert compiled["method"] == "mebp"
    report = verb("parity", bundle, "--steps", 1)
    assert report["passed"] is True
    assert report["max_relative_gradient_error"] <= 1e-4
    trained = verb("train", bundle, "--data", samples.train, "--state", state, "--steps", 2)
    assert trained["steps"] == 2 and len(trained["losses"]) == 2
    exported = folder / "adapter"
    verb("adapter", "export", bundle, "--state", state, "--format", "mlx", "-o", exported)
    assert (exported / "adapters.safetensors").stat().st_size > 0


def test_memory_is_that_of_one_layer(folder: Path) -> None:
    """Ten layers more leave the streamed step's memory as it is; what loads everything holds their weights."""
    few, many = (measure(layers, folder, length=32) for layers in (5, 15))
    assert few.streamed and many.streamed and few.resident and many.resident
    weights = many.weights - few.weights
    assert weights > 20
    assert many.streamed - few.streamed < 0.2 * weights
    assert many.resident - few.resident > 0.9 * weights
