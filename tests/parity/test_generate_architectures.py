"""Greedy text of architectures other than plain transformers: equal to transformers', untrained and trained.

Layers that cannot keep what they computed, of a state space or with attention sinks, compute all tokens again for each
new one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.architectures import VOCAB_SIZE, tiny_config, tiny_model
from tests.support.compiled import compile_tiny
from tests.support.generation import adapted, greedy, prompt_of, random_adapter, reference
from tests.support.tiny_models import tiny_tokenizer
from zoexport.session import Session

pytestmark = pytest.mark.parity

QUICK = {"mamba2": "all-linear", "lfm2": "attention"}
SLOW = {
    "bamba": "attention",
    "deepseek_v3": "all-linear",
    "falcon_h1": "attention",
    "gemma3n_text": "all-linear",
    "gemma4_text": "attention",
    "gpt_oss": "attention",
    "granitemoehybrid": "attention",
    "jamba": "attention",
    "olmoe": "attention",
    "qwen3_5_text": "attention",
    "qwen3_moe": "attention",
    "recurrent_gemma": "all-linear",
}
RECOMPUTE = {"gemma3n_text", "gpt_oss", "recurrent_gemma"}


def follow(model_type: str, targets: str, folder: Path) -> None:
    tiny_model(tiny_config(model_type)).save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    compiled = compile_tiny(
        folder / "model",
        folder / "bundle",
        "mebp",
        generate=True,
        max_length=64,
        batch_size=1,
        lora__target_modules=targets,
        lora__r=2,
    )
    bundle = Path(compiled["bundle"])
    generate = json.loads((bundle / "manifest.json").read_text())["generate"]
    assert (generate["lengths"][0] > 1) == (model_type in RECOMPUTE)
    assert any("generates slowly" in note for note in compiled["notes"]) == (
        model_type in RECOMPUTE
    )
    model = reference(folder / "model", bundle)
    prompt = prompt_of(9, VOCAB_SIZE)
    with Session.open(bundle) as session:
        slots = random_adapter(session)
    with Session.open(bundle) as session:
        for name, values in slots.items():
            session.write_adapter("trained", name, values.numpy())
        made = session.generate(prompt, adapter="trained", max_new_tokens=40, stop_tokens=())
        # The tokens of the prompt may be kept from the call before.
        base = session.generate(prompt, max_new_tokens=40, stop_tokens=())
    with adapted(model, bundle, slots):
        assert list(made.tokens) == greedy(model, prompt, 40)
    assert list(base.tokens) == greedy(model, prompt, 40)


@pytest.mark.parametrize("model_type", QUICK)
def test_greedy_text(model_type: str, tmp_path: Path) -> None:
    follow(model_type, QUICK[model_type], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", SLOW)
def test_greedy_text_of_more(model_type: str, tmp_path: Path) -> None:
    follow(model_type, SLOW[model_type], tmp_path)
