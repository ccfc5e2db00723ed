"""The target android-npu in QNN's emulation of the HTP, against the method's reference in fp32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.qnn import needs_qnn
from zoexport.parity import compare_signs, parity
from zoexport.session import Session

pytestmark = [pytest.mark.parity, needs_qnn]

# Few rows and many labels a call: what emulation costs is the calls.
SHAPE: dict[str, Any] = {"target": "android-npu", "seq_len": 12, "batch": 2, "labels": 24}
OURS = {"zoexport::zo_update", "zoexport::zo_perturb", "zoexport::label_logprobs"}


def quietly(*_: object) -> None:
    """No progress."""


@pytest.mark.parametrize(("soc", "queries"), [("SM8650", 1), ("SM8750", 2)])
@pytest.mark.parametrize("model", ["llama", "qwen2", "gemma3", "olmo2"])
def test_losses_are_those_of_fp32(model: str, soc: str, queries: int, compiler: Compiler) -> None:
    compiled = compiler.result(model, soc=soc, queries=queries, weights="int4", **SHAPE)
    assert compiled["delegates"] == 2
    for program, operators in compiled["fallback_ops"].items():
        (delegate,) = compiled["delegate_list"][program]
        assert delegate.startswith("QnnBackend: ") and "aten::linear" in delegate
        assert set(operators) <= OURS
        assert set(compiled["fallback_reasons"][program]) == set(operators)
    result = parity(Path(compiled["bundle"]), steps=5, progress=quietly)
    assert result["passed"] and result["max_relative_loss_error"] < 5e-3
    assert result["max_relative_state_error"] < 1e-6


def test_one_copy_a_call(compiler: Compiler) -> None:
    result = parity(compiler.bundle("llama", "mezo", queries=2, **SHAPE), steps=2, progress=quietly)
    assert result["passed"] and result["max_relative_loss_error"] < 5e-3


@pytest.mark.parametrize(
    "quantized",
    [{}, {"weights": "int8", "activations": "int16"}],
    ids=["fp16", "w8a16"],
)
def test_gradients_have_the_signs_of_fp32(quantized: dict[str, str], compiler: Compiler) -> None:
    bundle = compiler.bundle("llama", queries=4, **SHAPE, **quantized)
    result = compare_signs(bundle, queries=200, progress=quietly)
    assert result["queries"] >= 200 and result["counted"] >= 100
    assert result["passed"] and result["agreement"] >= 0.95


def test_losses_of_quantized_activations(compiler: Compiler) -> None:
    settings = {"weights": "int8", "activations": "int16"}
    compiled = compiler.result("llama", queries=4, **SHAPE, **settings)
    assert compiled["delegates"] == 2
    result = parity(Path(compiled["bundle"]), steps=2, progress=quietly)
    assert result["passed"] and result["max_relative_loss_error"] < 5e-3


def test_a_step_trains_and_the_manifest_says_what_it_needs(compiler: Compiler) -> None:
    bundle = compiler.bundle("llama", queries=4, **SHAPE)
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["backends"] == ["QnnBackend"]
    assert manifest["settings"]["soc"] == "SM8650" and manifest["max_labels"] == 24
    with Session.open(bundle) as session:
        # The weights in a context are the NPU's own; nothing is packed for a CPU.
        assert (session.info.packed_weights, session.info.packed_problem) == ("", "")
