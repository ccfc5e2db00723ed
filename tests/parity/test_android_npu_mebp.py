"""MeBP on android-npu, in QNN's emulation of the HTP, against autograd in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.qnn import needs_qnn
from tests.support.tiny_models import save_tiny
from zoexport.build import compile_bundle
from zoexport.parity import parity

# One at a time: threads of two emulations wait for each other, spinning.
pytestmark = [pytest.mark.parity, pytest.mark.slow, needs_qnn]
SETTINGS = {"seq_len": "16", "batch": "2", "lora.rank": "4", "lora.layers": "last:1"}


def compiled(folder: Path, name: str, **settings: str) -> dict[str, Any]:
    """What compile says of a tiny model's bundle."""
    return compile_bundle(
        str(save_tiny(name, folder / "model")),
        method="mebp",
        target="android-npu",
        output=folder / "bundle",
        settings={**SETTINGS, **settings},
        recipe=None,
        force=False,
        progress=lambda *_: None,
    )


@pytest.mark.parametrize(
    ("name", "settings"), [("llama", {}), ("gemma3", {"weights": "fp32"})], ids=["llama", "gemma3"]
)
def test_gradients(name: str, settings: dict[str, str], tmp_path: Path) -> None:
    result = compiled(tmp_path, name, **settings)
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    # All of a layer is one delegate, forward and backward; the head's gradient needs labels between two.
    counts = {program: len(found) for program, found in result["delegate_list"].items()}
    assert counts.pop("embedding@16") == 0 and counts.pop("head.backward") == 2
    assert {*counts.values()} == {1}
    left = {operator for found in result["fallback_ops"].values() for operator in found}
    ours = {"zoexport::rows_1", "zoexport::label_logprobs", "zoexport::label_gradient"}
    assert left - ours <= {"aten::view_copy", "aten::embedding"}
    assert manifest["lengths"] == [16]
    # Weights are inside: stages bind adapters alone, but for the embedding's.
    slots = {slot["name"] for slot in manifest["state"]}
    assert all({*stage["bind"].values()} <= slots for stage in manifest["stages"][1:])
    report = parity(tmp_path / "bundle", steps=2, progress=lambda *_: None)
    assert report["passed"] is True, report
    assert report["max_relative_gradient_error"] <= 1.5e-2
    assert report["max_relative_loss_error"] <= 1e-3
