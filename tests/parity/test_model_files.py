"""What folders of models contain beside one model: what compile makes of it, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

import zoexport
from tests.support.compiled import SEQ
from tests.support.tiny_models import CHAT_TEMPLATE, fixed_tokens, save_tiny, tiny
from zoexport.core.errors import ModelError
from zoexport.session import Dataset, Session

pytestmark = pytest.mark.parity


def test_an_adapter_more_layers_and_several_templates(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path / "model")
    model = tiny("llama")
    tokens = fixed_tokens(1, SEQ)
    get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    (folder / "chat_template.jinja").unlink()
    path = folder / "tokenizer_config.json"
    named = {"tool_use": "TOOLS", "default": CHAT_TEMPLATE}
    several = [{"name": name, "template": text} for name, text in named.items()]
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": several}))
    bundle = zoexport.compile(
        folder,
        output=tmp_path / "bundle",
        max_length=SEQ,
        weights="fp32",
        settings={"generate": False},
    )
    assert bundle.compiled is not None
    adapter, layers = sorted(bundle.compiled["notes"], reverse=True)
    assert "not used by LlamaForCausalLM: model.layers.1." in layers
    assert (
        adapter
        == f"the adapter in {folder} is not part of the model; pass it as adapter to start from it"
    )
    assert "chat" in bundle.manifest["text"]
    assert (bundle.path / "chat_template.jinja").read_text() == CHAT_TEMPLATE
    plain = tiny("llama")
    plain.model.layers = plain.model.layers[:1]
    with torch.no_grad():
        expected = float(plain(input_ids=tokens, labels=tokens, use_cache=False).loss)
    with Session.open(bundle.path) as session, Dataset() as dataset:
        (row,) = tokens.tolist()
        dataset.add([(row[:-1], row[1:])], 0)
        assert session.evaluate(dataset).loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("method", ["prge", "mebp"])
def test_a_weight_that_is_no_number_is_named(method: str, tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path / "model", tokenizer=False)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ModelError, match=r"NaN or infinite values in the tensor model\.norm\.weight"
    ):
        zoexport.compile(
            folder,
            method=method,
            output=tmp_path / "bundle",
            max_length=SEQ,
            weights="fp32",
            settings={"generate": False},
        )
    assert not (tmp_path / "bundle").exists()
