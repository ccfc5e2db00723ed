"""Default settings of every method lower the held-out loss of the demo's sentences, on the real model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cache import cached
from tests.support.smollm2 import MODEL, compiled
from tests.support.verbs import verb
from zoexport.data.samples import Samples
from zoexport.methods import methods

pytestmark = [pytest.mark.slow, pytest.mark.network]
STEPS = 60
"""As many as the demo takes."""
HELD_OUT = 64


def _mask() -> tuple[str, ...]:
    few = ("--set", "sequences=4", "--set", "max_length=64")
    folder, _ = cached(
        {"sensitivity": MODEL, "arguments": few},
        lambda folder: verb("sensitivity", MODEL, *few, "-o", folder / "mask"),
    )
    return ("--set", f"mask={folder / 'mask'}")


@pytest.mark.parametrize("method", methods.names())
def test_default_steps_lower_the_held_out_loss(
    tmp_path: Path, samples: Samples, method: str
) -> None:
    held_out = tmp_path / "held-out.jsonl"
    lines = samples.test.read_text("utf-8").splitlines(keepends=True)
    held_out.write_text("".join(lines[:HELD_OUT]), "utf-8")
    mask = _mask() if method == "senszoq" else ()
    bundle, _ = compiled("--method", method, "--target", "host", "--set", "generate=false", *mask)
    state = tmp_path / "state"
    before = verb("eval", bundle, "--data", held_out)["loss"]
    verb("train", bundle, "--data", samples.train, "--state", state, "--steps", STEPS)
    assert verb("eval", bundle, "--data", held_out, "--state", state)["loss"] < before
