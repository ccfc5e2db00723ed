"""Tokenizers that transformers builds anew when it reads them, in files that give the same one again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, LlamaTokenizer

from tests.support import tokenizers
from tests.support.tiny_models import tiny_tokenizer
from zoexport.models.older_readers import AS_WRITTEN
from zoexport.models.saved import chat_template, save_tokenizer

_TEXT = "a<s>b a"


def _llama(*, legacy: bool) -> Any:
    vocabulary = {
        text: number for number, text in enumerate(["<unk>", "<s>", "</s>", *"▁ab", "▁b"])
    }
    return LlamaTokenizer(vocab=vocabulary, merges=[("▁", "b")], legacy=legacy)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_tokenizer_with_settings_that_transformers_does_not_save(
    tmp_path: Path, legacy: bool
) -> None:
    made = _llama(legacy=legacy)
    save_tokenizer(made, tmp_path)
    read = AutoTokenizer.from_pretrained(tmp_path)
    assert read(_TEXT)["input_ids"] == made(_TEXT)["input_ids"]
    assert made.convert_tokens_to_ids(["▁b" if legacy else "b"])[0] in read(_TEXT)["input_ids"]
    content = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    assert content == json.loads(read.backend_tokenizer.to_str())


def test_other_files_are_those_of_transformers(tmp_path: Path) -> None:
    for tokenizer in (tiny_tokenizer(), _llama(legacy=False), tokenizers.tokenizer("bert-uncased")):
        save_tokenizer(tokenizer, tmp_path / "ours")
        tokenizer.save_pretrained(tmp_path / "theirs")
        names = sorted(path.name for path in (tmp_path / "theirs").iterdir())
        assert names == sorted(path.name for path in (tmp_path / "ours").iterdir())
        for name in names:
            ours, theirs = ((tmp_path / at / name).read_text() for at in ("ours", "theirs"))
            # The one class that only transformers 5 has.
            assert ours.rstrip() == theirs.replace("TokenizersBackend", AS_WRITTEN).rstrip()


@pytest.mark.parametrize("first", ["tool_use", "rag"])
def test_of_several_chat_templates_one_is_saved(tmp_path: Path, first: str) -> None:
    tokenizer = tiny_tokenizer()
    several = {first: "tools", "default": tokenizer.chat_template}
    tokenizer.chat_template = several
    save_tokenizer(tokenizer, tmp_path)
    assert all(path.is_file() for path in tmp_path.iterdir())
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == several["default"]
    assert tokenizer.chat_template is several
    tokenizer.chat_template = {first: "tools", "other": "text"}
    assert chat_template(tokenizer) == "tools"
