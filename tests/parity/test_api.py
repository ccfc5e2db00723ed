"""The Python API from a live model to its adapter in PEFT."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import peft
import pytest
import torch

import zoexport
from tests.support.tiny_models import SENTENCES, tiny, tiny_tokenizer

pytestmark = pytest.mark.parity
EXAMPLES = [{"text": sentence} for sentence in SENTENCES]


def test_a_live_model_is_compiled_trained_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOEXPORT_CACHE", str(tmp_path / "cache"))
    model, tokenizer = tiny("qwen2"), tiny_tokenizer()
    lora = peft.LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "down_proj"])
    said: list[str] = []
    bundle = zoexport.compile(
        model,
        tokenizer=tokenizer,
        lora=lora,
        output=tmp_path / "bundle",
        progress=lambda phase, share: said.append(phase),
        weights="fp32",
        max_length=24,
        batch_size=2,
    )
    assert bundle.compiled is not None and "loading the model" in said
    assert (bundle.method, bundle.target) == ("mebp", "host")
    assert bundle.settings["lora.r"] == 3 and bundle.settings["lora.alpha"] == 5
    assert bundle.parity(steps=2).passed

    bundle = zoexport.Bundle.open(tmp_path / "bundle")
    steps: list[int] = []
    trained = bundle.train(
        EXAMPLES,
        state=tmp_path / "state",
        steps=5,
        progress=lambda now: steps.append(now.step),
        learning_rate=1e-2,
    )
    assert trained.steps == len(trained.losses) == len(steps) == 5
    assert trained.examples == len(EXAMPLES) and trained.state == tmp_path / "state"
    before, after = (bundle.evaluate(iter(EXAMPLES), state=s) for s in (None, trained.state))
    assert after.loss < before.loss and after.accuracy is None

    exported = bundle.export_adapter(tmp_path / "adapter", state=trained.state)
    assert (exported.format, exported.steps) == ("peft", 5)
    adapted = peft.PeftModel.from_pretrained(model, str(exported.adapter))
    assert peft.LoraConfig.from_pretrained(str(exported.adapter)).r == 3
    total = 0.0
    for sentence in SENTENCES:
        tokens = tokenizer(sentence, return_tensors="pt")["input_ids"][:, :24]
        with torch.no_grad():
            total += float(adapted(input_ids=tokens, labels=tokens).loss)
    assert total / len(SENTENCES) == pytest.approx(after.loss, rel=1e-4)

    again = bundle.import_adapter(exported.adapter, state=tmp_path / "imported")
    assert bundle.evaluate(EXAMPLES, state=again.state).loss == pytest.approx(after.loss, rel=1e-6)


@pytest.mark.slow
def test_the_command_line_makes_the_same_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny("llama").save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    ours = zoexport.compile(
        tmp_path / "model", output=tmp_path / "ours", max_length=16, lora_r=2, weights="fp32"
    )
    line = [sys.executable, "-m", "zoexport", "compile", str(tmp_path / "model"), "--json"]
    line += ["--set=max_length=16", "--set=lora.r=2", "--set=weights=fp32", "--target=host"]
    subprocess.run([*line, "-o", str(tmp_path / "theirs")], check=True, capture_output=True)
    theirs = json.loads((tmp_path / "theirs" / "manifest.json").read_text())
    assert ours.manifest["bundle_id"] == theirs["bundle_id"]
