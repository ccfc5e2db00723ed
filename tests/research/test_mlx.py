"""MLX's functions called by the manifest alone, as any host of MLX can: against the session, and its memory."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from research.mlx.measure import measure
from research.mlx.resident import ResidentStep
from tests.support.compiled import Compiler
from zoexport.session import Dataset, Session


@pytest.mark.parity
@pytest.mark.parametrize("name", ["gemma3", "falcon"])
def test_a_step_without_the_session_is_the_same_step(compiler: Compiler, name: str) -> None:
    """Gemma 3 passes several activations and has kinds of layers; Falcon's have biases and two readers of one."""
    bundle = compiler.bundle(
        name, "mebp", "ios-mlx", lora__target_modules="all-linear", weights="int4", batch_size=1
    )
    tokens = [(7 * place + 3) % 300 for place in range(25)]
    loss, gradients = ResidentStep(bundle).run(tokens)
    with Session.open(bundle) as session, Dataset() as data:
        data.add([(tokens[:-1], tokens[1:])], 0)
        assert session.step(data, [0]).loss == pytest.approx(loss, rel=1e-6)
        slots = {slot.name: slot.shape for slot in session.slots()}
        assert gradients.keys() == slots.keys()
        for slot, shape in slots.items():
            theirs = np.frombuffer(session.read_slot(slot, gradient=True), np.float32)
            ours: mx.array = gradients[slot]
            most = max(float(np.abs(theirs).max()), 1e-6)
            np.testing.assert_allclose(np.array(ours), theirs.reshape(shape), atol=1e-5 * most)


@pytest.mark.slow
@pytest.mark.network
def test_memory_is_that_of_one_layer(tmp_path: Path) -> None:
    """Ten layers more leave the streamed step's memory as it is; what loads everything holds their weights."""
    few, many = (measure(layers, tmp_path, length=32) for layers in (5, 15))
    assert few.streamed and many.streamed and few.resident and many.resident
    weights = many.weights - few.weights
    assert weights > 20
    assert many.streamed - few.streamed < 0.2 * weights
    assert many.resident - few.resident > 0.9 * weights
