"""Float16 slots of whole-model programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.support import bundles
from tests.support.bundles import SLOT, LinearModel
from tests.support.sessions import make_dataset
from tests.unit.session.test_split_manifest import rewrite, value
from zoexport.session import Session, Tensor

EXAMPLES = bundles.text_examples()


class HalfSlot(LinearModel):
    """The same model, whose trainable slot is float16."""

    def __call__(
        self, program: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> None:
        half = inputs[SLOT]
        bits = np.array(half.data, np.uint16)
        widened = memoryview(bits.view(np.float16).astype(np.float32))
        room = np.zeros(len(bits), np.float32)
        narrow = {
            n: Tensor(n, t.shape, memoryview(room)) if n == SLOT else t for n, t in outputs.items()
        }
        super().__call__(program, {**inputs, SLOT: Tensor(SLOT, half.shape, widened)}, narrow)
        if SLOT in outputs:
            outputs[SLOT].data[:] = memoryview(room.astype(np.float16).view(np.uint16))


@pytest.mark.parametrize("method", ["prge", "mezo"])
def test_a_whole_models_slot_may_be_float16(tmp_path: Path, method: str) -> None:
    """The program's update and the session's own are the same bits."""
    bundle = bundles.write_bundle(tmp_path / "bundle", method=method)
    initial = bundles.initial_values()
    halves = {name: torch.tensor(v) for name, v in initial.items()}
    halves[SLOT] = halves[SLOT].half()
    save_file(halves, bundle / "adapter.safetensors")

    def narrow(manifest: dict[str, Any]) -> None:
        manifest["state"][0].update(dtype="float16")
        for name, which in (("train", "inputs"), ("train", "outputs"), ("evaluate", "inputs")):
            value(manifest, name, which, SLOT).update(dtype="float16")
        size = (bundle / "adapter.safetensors").stat().st_size
        manifest["files"]["adapter.safetensors"].update(bytes=size)

    rewrite(bundle, narrow)
    slot = initial[SLOT].astype(np.float16)
    with (
        make_dataset(EXAMPLES) as dataset,
        Session.open(bundle, engine=HalfSlot(), verify=False) as session,
    ):
        for step in range(4):
            session.step(dataset, [step, step + 1])
            current = np.frombuffer(session.read_slot(SLOT, finished=False), np.float32)
            np.testing.assert_array_equal(current, slot.astype(np.float32).ravel())
            record = session.record(step)
            gradients = np.array(record.gradients, np.float32)
            moved = bundles.zo_update(
                slot.astype(np.float32), gradients, record.learning_rate, 7, step + 1
            )
            slot = moved.astype(np.float16)
            finished = np.frombuffer(session.read_slot(SLOT), np.float32)
            np.testing.assert_array_equal(finished, slot.astype(np.float32).ravel())
            assert session.replay_slot(SLOT, step + 1) == session.read_slot(SLOT)
