"""End tokens from the model's files to generated text, and notices before the first step."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM

from tests.support.compiled import Compiler, compile_tiny
from tests.support.tiny_models import save_tiny, tiny_tokenizer
from zoexport import models
from zoexport.api import Bundle
from zoexport.cli.main import run
from zoexport.core.native import runner_path
from zoexport.core.progress import Notice
from zoexport.data.text_entry import end_tokens

pytestmark = pytest.mark.parity
PROMPT, COMPLETION = "It was", " great"


def save(folder: Path) -> Path:
    """A model whose tokenizer writes BOS and EOS around a text, and whose generation has an end token of its own."""
    save_tiny("llama", folder, tokenizer=False)
    tokenizer = tiny_tokenizer()
    specials = [("<|im_start|>", 1), ("<|im_end|>", 2)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=specials
    )
    tokenizer.save_pretrained(folder)
    settings = {"bos_token_id": 1, "eos_token_id": [0, 2], "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("pickled", [True, False])
def test_generation_config_is_read(tmp_path: Path, lazy: bool, pickled: bool) -> None:
    """However the weights are stored and read; the tokenizer's EOS comes first, as training appends that."""
    folder = save(tmp_path / "model")
    if pickled:
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    loaded = models.load(models.resolve(str(folder)), lazy=lazy)
    assert end_tokens(loaded) == [2, 0]
    loaded.tokenizer = None
    assert end_tokens(loaded) == [0, 2]
    (folder / "generation_config.json").unlink()
    loaded = models.load(models.resolve(str(folder)), lazy=lazy)
    assert end_tokens(loaded) == [2]
    loaded.tokenizer.eos_token = None  # type: ignore[union-attr]
    model: Any = loaded.model
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    assert end_tokens(loaded) == []


def test_completions_that_were_trained_end(tmp_path: Path) -> None:
    """One tokenizer adds EOS behind every text: it must follow the completion, and no prompt."""
    folder = save(tmp_path / "model")
    settings: dict[str, Any] = {"max_length": 24, "generate": True, "generate__context": 64}
    compile_tiny(folder, tmp_path / "bundle", "mebp", **settings)
    found = Bundle.open(tmp_path / "bundle").manifest
    assert found["text"]["end_tokens"] == found["generate"]["stop_tokens"] == [0, 2]
    assert found["text"]["eos_token"] == 2
    bundle = Bundle.open(tmp_path / "bundle")
    data = [{"prompt": PROMPT, "completion": COMPLETION}]

    tokenizer = tiny_tokenizer()
    prompt = [1, *tokenizer(PROMPT)["input_ids"]]
    tokens = [*prompt, *tokenizer(COMPLETION)["input_ids"], 2]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, len(prompt) - 1 : -1]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[len(prompt) :]))
    assert bundle.evaluate(data).loss == pytest.approx(expected.item(), rel=1e-5)

    bundle.train(data, state=tmp_path / "run", steps=60, settings={"learning_rate": 2e-2})
    made = bundle.generate(PROMPT, state=tmp_path / "run", max_new_tokens=20)
    assert (made.text, made.stop, made.prompt_tokens) == (COMPLETION, "eos", len(prompt))


def test_shortened_examples_are_reported_first(
    compiler: Compiler, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = compiler.bundle("llama", "mebp", lora__target_modules="all-linear", generate=True)
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"text": "It was great. " * 9}) + "\n")
    options = ("--data", str(data), "--state", str(tmp_path / "run"), "--steps", "1")
    assert run(["train", str(bundle), *options]) == 0
    lines = capfd.readouterr().err.splitlines()
    start = "1 of 1 examples is longer than max_length=24 and is shortened. Compile with a larger "
    (said,) = [number for number, line in enumerate(lines) if start in line]
    assert said < lines.index("train: training")

    told: list[str] = []
    Bundle.open(bundle).train(
        data, state=tmp_path / "api", steps=1, phase=lambda phase, _: told.append(phase)
    )
    (notice,) = [phase for phase in told if isinstance(phase, Notice)]
    assert notice == lines[said].removeprefix("train: ")
    assert told.index(notice) < told.index("training")

    line = [runner_path(), "train", "--bundle", bundle, "--data", data, "--steps", 1]
    line += ["--state", tmp_path / "runner"]
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, check=True)
    assert done.stderr.index(notice) < done.stderr.index("step 1/1")
