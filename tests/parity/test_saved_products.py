"""Layers that save their products' results train the same bits as those that compute them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.support.compiled import Compiler
from tests.support.engine_parity import passed
from tests.support.runner import ran
from tests.support.sessions import write_examples
from tests.support.tiers import slow_after

pytestmark = pytest.mark.parity
ALL: dict[str, Any] = {"lora__target_modules": "all-linear"}
STEPS = 4


def trained(
    bundle: Path, folder: Path, activation_cache_mb: int
) -> tuple[list[float], dict[str, bytes], set[str]]:
    """Losses, adapters with moments, and the programs that ran, of steps on rows of unequal lengths."""
    tokens = [
        [(7 * number + 3 * place) % 300 for place in range(length + 1)]
        for number, length in enumerate((5, 24, 11, 2))
    ]
    folder.mkdir()
    examples = write_examples(
        folder / "examples.jsonl", [([(row[:-1], row[1:])], 0) for row in tokens]
    )
    state = folder / "state"
    arguments = (
        "--examples",
        examples,
        "--state",
        state,
        "--steps",
        STEPS,
        "--set",
        f"activation_cache_mb={activation_cache_mb}",
    )
    found = ran("train", bundle, *arguments, "--timings")
    (snapshot,) = state.glob("snapshot-*.safetensors")
    slots = {name: value.tobytes() for name, value in load_file(snapshot).items()}
    return found["losses"], slots, {*found["programs"]}


@pytest.mark.parametrize(
    ("name", "settings"),
    slow_after(
        1,
        [
            ("llama", {"weights": "int4"}),
            ("gemma3", {"weights": "fp32"}),
            ("gpt2", {"weights": "int8", "lora__target_modules": "attention"}),
            ("bloom", {"weights": "int4"}),
            ("olmo2", {"weights": "fp32", "lora__dropout": 0.2}),
            ("bert", {"weights": "int4"}),
        ],
    ),
)
def test_the_same_bits(
    compiler: Compiler, tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    bundle = compiler.bundle(name, "mebp", **{**ALL, **settings})
    computed = trained(bundle, tmp_path / "computed", 0)
    kept = trained(bundle, tmp_path / "kept", 1000)
    assert computed[:2] == kept[:2]
    assert not any("saving" in program for program in computed[2])
    assert any("saving" in program for program in kept[2])
    assert not any(".backward@" in program for program in kept[2])


def test_parity_where_results_are_saved(compiler: Compiler) -> None:
    """Against autograd over the same dequantized weights; 256 MB is the default on this target."""
    bundle = compiler.bundle("llama", "mebp", weights="int4", **ALL)
    assert (
        json.loads((bundle / "manifest.json").read_text())["settings"]["activation_cache_mb"] == 256
    )
    report = passed(bundle, 4)
    assert report["max_relative_gradient_error"] <= 1e-4
