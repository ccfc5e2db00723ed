"""A compiled bundle's text: its session writes conversations and tokens as the model's own tokenizer does."""

from __future__ import annotations

from transformers import AutoTokenizer

from tests.support.compiled import Compiler
from tests.support.text_checks import compare
from zoexport.session import Bundle
from zoexport.session.data import Tokenizer


def test_a_compiled_bundle_has_its_models_text() -> None:
    compiler = Compiler()
    bundle = compiler.bundle("llama")
    theirs = AutoTokenizer.from_pretrained(compiler.model("llama"))
    text = Bundle.open(bundle).manifest["text"]
    assert text["end_tokens"] == [2] and text["chat"]["end_tokens"] == [2]
    with Tokenizer.open(bundle) as ours:
        compare(ours, theirs, texts=60, seed=1)
        assert ours.chat([{"role": "user", "content": "Hi"}]) == theirs.apply_chat_template(
            [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
        )
