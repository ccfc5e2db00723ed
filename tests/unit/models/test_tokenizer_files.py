"""Tokenizers that transformers builds anew when it reads them, in files that give the same one again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, LlamaTokenizer

from tests.support import tokenizers
from tests.support.tiny_models import tiny_tokenizer
from zoexport.models.tokenizer_files import save_tokenizer

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
            assert (tmp_path / "ours" / name).read_bytes() == (
                tmp_path / "theirs" / name
            ).read_bytes()
