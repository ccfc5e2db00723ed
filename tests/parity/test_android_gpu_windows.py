"""Matrices in several windows of weights: the same steps as the methods' references, and the same losses to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import engine_parity
from tests.support.compiled import Compiler, compile_tiny
from tests.support.engine_parity import data
from tests.support.tiers import slow_after
from zoexport.session import Session
from zoexport.targets.vulkan import places
from zoexport.targets.vulkan.lower import FILE

pytestmark = pytest.mark.parity
TARGET = "android-gpu"
MEBP = {"method": "mebp", "lora__target_modules": "all-linear"}
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("llama_tied", 4608, {**MEBP, "weights": "int4"}),
    ("gpt2", 32768, {**MEBP, "weights": "fp32"}),
    ("llama_tied", 8448, {**MEBP, "weights": "int8"}),
    ("llama_tied", 4608, {**MEBP, "weights": "int4", "compute": "fp16"}),
    (
        "llama",
        4608,
        {"method": "prge", "num_queries": 2, "weights": "int4"},
    ),
]
"""Models, bytes of a window, of which the head's matrix takes three, and settings."""


@pytest.mark.parametrize(("name", "size", "settings"), slow_after(1, CASES))
def test_steps_over_a_head_in_three_windows(
    compiler: Compiler,
    name: str,
    size: int,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    whole = compiler.bundle(name, target=TARGET, **settings)
    monkeypatch.setattr(places, "WINDOW_BYTES", size)
    bundle = tmp_path / "bundle"
    compile_tiny(compiler.model(name), bundle, target=TARGET, **settings)
    content = json.loads((bundle / FILE).read_text())
    assert max(content["windows"]) <= size
    head = content["programs"]["head"]["inputs"]
    assert {len(one["parts"]) for one in head if "parts" in one} == {3}
    report = engine_parity.compare(bundle, "vulkan", 4)
    if settings["method"] == "mebp":
        most = 2e-2 if "compute" in settings else 1e-5
        assert report["max_relative_gradient_error"] <= most
    else:
        assert report["max_relative_state_error"] == 0.0
    assert loss(bundle) == loss(whole)


def loss(bundle: Path) -> float:
    """Of examples, before anything is trained."""
    with Session.open(bundle) as session, data() as examples:
        return session.evaluate(examples).loss
