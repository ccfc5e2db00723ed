"""What ``make bench-generate`` measures: bytes that a token reads, both processes, the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from research.generation import measure, models
from research.support.llama_cpp import installed, program
from tests.support.compiled import Compiler

ASKED = {"prompt": [3 + place for place in range(20)], "tokens": 4, "threads": 1}
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "vocab_size": 320,
}


@pytest.mark.parity
def test_a_bundle_is_measured(compiler: Compiler) -> None:
    bundle = compiler.bundle("llama", "mebp", lora__target_modules="all-linear", generate=True)
    command = [sys.executable, str(Path(measure.__file__).with_name("ours.py"))]
    sample = measure.turn(command, {**ASKED, "model": str(bundle)})
    for key in ("prefill_tokens_per_second", "decode_tokens_per_second", "first_seconds"):
        assert sample[key] > 0
    assert 0 < sample["peak_mb"] < 60
    row = measure.Row(
        models.Compared("tiny", {"fp32": bundle}, bundle, "Q4_0", 320),
        {"fp32": sample},
        {**sample, "decode_tokens_per_second": sample["decode_tokens_per_second"] / 2},
        measure.bytes_a_token(bundle),
    )
    table = measure.table([row], threads=1, rounds=1, bandwidth=1e9)
    assert "(2.00x)" in table and "(1.00x)" in table


@pytest.mark.parity
def test_bytes_of_a_token_are_those_of_layers_and_head(compiler: Compiler) -> None:
    bundle = compiler.bundle("llama", "mebp", lora__target_modules="all-linear", generate=True)
    model = json.loads((compiler.model("llama") / "config.json").read_text())
    hidden, inner = model["hidden_size"], model["intermediate_size"]
    width = hidden // model["num_attention_heads"]
    keys = width * model["num_key_value_heads"]
    matrices = hidden * (2 * hidden + 2 * keys + 3 * inner) * model["num_hidden_layers"]
    matrices += hidden * model["vocab_size"]
    norms = 4 * hidden * (2 * model["num_hidden_layers"] + 1)
    weights = json.loads((bundle / "manifest.json").read_text())["settings"]["weights"]
    bits = {"int4": 4.5, "fp32": 32}[weights]
    assert measure.bytes_a_token(bundle) == matrices * bits / 8 + norms


@pytest.mark.slow
@pytest.mark.network
def test_llama_cpp_runs_the_random_model(tmp_path: Path) -> None:
    path = tmp_path / "random.gguf"
    models.random_gguf(path, SHAPE)
    script = installed(Path(measure.__file__).with_name("llama.mjs"))
    sample = measure.turn([program("node"), str(script)], {**ASKED, "model": str(path)})
    assert sample["prefill_tokens_per_second"] > 0
    assert sample["decode_tokens_per_second"] > 0
