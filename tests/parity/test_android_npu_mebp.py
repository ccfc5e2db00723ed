"""Programs of single layers on android-npu, in QNN's emulation of the HTP: MeBP's gradients against float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.engine_parity import passed
from tests.support.qnn import needs_qnn

# One at a time: threads of two emulations wait for each other, spinning.
pytestmark = [pytest.mark.parity, pytest.mark.slow, needs_qnn]

SHAPE: dict[str, Any] = {"target": "android-npu", "max_length": 16, "batch_size": 2}
ON_CPU = {"zoexport::rows_1", "zoexport::label_logprobs", "zoexport::label_gradient"}
FREE = {"aten::view_copy"}


def compare(bundle: Path, steps: int) -> dict[str, Any]:
    """Parity without progress; it passes."""
    report = passed(bundle, steps)
    assert report["max_relative_loss_error"] <= 1e-3
    return report


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("llama", {"weights": "int4"}),
        ("gemma3", {"weights": "fp32", "lora__layers_to_transform": "last:1"}),
    ],
    ids=["llama", "gemma3"],
)
def test_gradients(model: str, settings: dict[str, str], compiler: Compiler) -> None:
    compiled = compiler.result(model, "mebp", **settings, **SHAPE)
    bundle = Path(compiled["bundle"])
    # All of a layer is one delegate, forward and backward; the labels come between two of the head's backward.
    delegates = {program: len(found) for program, found in compiled["delegate_list"].items()}
    assert delegates.pop("embedding@16") == 0 and delegates.pop("head.backward") == 2
    assert {*delegates.values()} == {1}
    for program, operators in compiled["fallback_ops"].items():
        assert program == "embedding@16" or set(operators) <= ON_CPU | FREE
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["backends"] == ["QnnBackend"] and manifest["lengths"] == [16]
    # Weights are inside the programs: but for the embedding, stages bind adapters alone.
    slots = {slot["name"] for slot in manifest["state"]}
    assert all({*stage["bind"].values()} <= slots for stage in manifest["stages"][1:])
    # The second step's A has gradients, as B has left zero.
    assert compare(bundle, 2)["max_relative_gradient_error"] <= 1.5e-2


def test_perturbed_layers(compiler: Compiler) -> None:
    compare(compiler.bundle("llama", "mezo", granularity="layer", num_queries=1, **SHAPE), 1)
