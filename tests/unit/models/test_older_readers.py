"""Folders that transformers 5 saved, read by mlx-lm, and by the names that transformers 4 used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from tests.support.mlx_models import mlx_logits, mlx_model
from tests.support.rotary_configs import CONFIGS, MODELS, rotary_config
from tests.support.tiny_models import fixed_tokens, from_config, tiny_tokenizer
from zoexport.models import load, resolve
from zoexport.models.older_readers import write_older_keys
from zoexport.models.saved import save_tokenizer
from zoexport.trained import Output
from zoexport.trained.model_files import save_model


@pytest.mark.parametrize("name", MODELS)
def test_mlx_lm_computes_what_transformers_does(name: str, tmp_path: Path) -> None:
    model = from_config(rotary_config(name))
    model.save_pretrained(tmp_path / "saved")
    loaded = load(resolve(str(tmp_path / "saved")))
    save_model(Output("merged", tmp_path / "merged"), loaded)
    tokens = fixed_tokens(1, 24)
    with torch.no_grad():
        expected = model(input_ids=tokens, use_cache=False).logits
    found = torch.from_numpy(mlx_logits(mlx_model(tmp_path / "merged"), tokens))
    # Some of mlx-lm's models have another form of GELU; a wrong base of the rotary angles changes far more.
    assert (found - expected).abs().max() < 5e-4 * expected.abs().max()


@pytest.mark.parametrize("name", CONFIGS)
def test_older_keys_alone_say_the_same(name: str, tmp_path: Path) -> None:
    """transformers 5 still reads the names of version 4, which say what is under ``rope_parameters``."""
    config = rotary_config(name)
    config.save_pretrained(tmp_path)
    write_older_keys(tmp_path)
    path = tmp_path / "config.json"
    written = path.read_bytes()
    content = json.loads(written)
    assert _rope(AutoConfig.from_pretrained(tmp_path)) == _rope(config)
    del content["rope_parameters"]
    path.write_text(json.dumps(content))
    assert _rope(AutoConfig.from_pretrained(tmp_path)) == _rope(config)
    path.write_bytes(written)
    write_older_keys(tmp_path)
    assert path.read_bytes() == written


def _rope(config: Any) -> Any:
    def plain(rope: dict[str, Any]) -> dict[str, Any]:
        return {
            key: plain(value) if isinstance(value, dict) else value
            for key, value in rope.items()
            if key != "type"
        }

    return plain(config.rope_parameters)


def test_phi3_has_the_three_keys_that_older_versions_accept(tmp_path: Path) -> None:
    rotary_config("phi3-longrope").save_pretrained(tmp_path)
    write_older_keys(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert set(content["rope_scaling"]) == {"type", "short_factor", "long_factor"}
    assert content["original_max_position_embeddings"] == 8


def test_tokenizer_class_and_special_tokens_are_those_of_version_4(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<a>", "<b>"]})
    save_tokenizer(tokenizer, tmp_path)
    content = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert content["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "extra_special_tokens" not in content
    assert content["additional_special_tokens"] == ["<a>", "<b>"]
