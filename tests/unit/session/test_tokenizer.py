"""The session's tokenizer against transformers, over pipelines of known models and texts that no one would write."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import tokenizers, unicode_tables
from tests.support.text_checks import compare
from zoexport.core.errors import BundleError, DataError, ZoExportError
from zoexport.session.tokenizer import Tokenizer

Change = Callable[[dict[str, Any]], object]


def bundle(folder: Path, kind: str, change: Change | None = None) -> Path:
    files = folder / "files"
    tokenizers.tokenizer(kind).save_pretrained(files)
    if change is not None:
        content = json.loads((files / "tokenizer.json").read_text("utf-8"))
        change(content)
        (files / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    return tokenizers.write_bundle(folder / "bundle", files)


@pytest.fixture
def qwen(tmp_path: Path) -> Iterator[Tokenizer]:
    with Tokenizer.open(bundle(tmp_path, "qwen2")) as tokenizer:
        yield tokenizer


@pytest.mark.parametrize("kind", tokenizers.KINDS)
def test_tokens_and_texts_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    with Tokenizer.open(bundle(tmp_path, kind)) as ours:
        compare(ours, tokenizers.tokenizer(kind), texts=150, seed=len(kind))


def test_normal_forms_are_those_of_the_library() -> None:
    """Every character, and every pair that composes: the tables are what the library says today."""
    assert unicode_tables.PATH.read_text("ascii") == unicode_tables.text()


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_marks_are_ordered_and_composed(tmp_path: Path, form: str) -> None:
    generator = random.Random(3)
    theirs = tokenizers.normalizing(form)
    files = tmp_path / "files"
    theirs.save_pretrained(files)
    starters = "aeoΑωकกᄀ가각ᆨ한\u0f71\u1100ÅṩﬃŻ㍿"  # noqa: RUF001
    marks = [
        chr(code) for code in (*range(0x300, 0x370), 0x5B0, 0x64B, 0x93C, 0xF72, 0x1161, 0x11A8)
    ]
    with Tokenizer.open(tokenizers.write_bundle(tmp_path / "bundle", files)) as ours:
        for _ in range(300):
            text = "".join(
                generator.choice(starters)
                + "".join(generator.choices(marks, k=generator.randint(0, 4)))
                for _ in range(8)
            )
            assert ours.encode(text) == theirs(text)["input_ids"], ascii(text)


def test_nothing_is_nothing(qwen: Tokenizer) -> None:
    assert qwen.encode("") == []
    assert qwen.decode([]) == ""


def test_special_tokens_in_a_text_are_found(qwen: Tokenizer) -> None:
    tokens = qwen.encode("a<|im_end|><|im_end|>b")
    assert tokens[1:3] == [2, 2]
    assert qwen.decode(tokens) == "ab"
    assert qwen.decode(tokens, special=True) == "a<|im_end|><|im_end|>b"


def test_zeros_pass_both_ways(qwen: Tokenizer) -> None:
    assert qwen.decode(qwen.encode("a\x00b")) == "a\x00b"


def test_tokens_that_are_cut_inside_a_character_become_replacements(qwen: Tokenizer) -> None:
    tokens = qwen.encode("🙃")
    assert len(tokens) > 1
    assert qwen.decode(tokens[:-1]) == "\ufffd"


def test_unknown_numbers_have_no_text_and_negative_ones_are_refused(qwen: Tokenizer) -> None:
    assert qwen.decode([10**6]) == ""
    with pytest.raises(DataError, match="-1"):
        qwen.decode([-1])


def test_half_a_surrogate_pair_is_refused(qwen: Tokenizer) -> None:
    with pytest.raises(DataError, match="byte 1 that is no UTF-8"):
        qwen.encode("a\ud83d")


def test_a_long_text_without_blanks_takes_no_square_of_its_length(tmp_path: Path) -> None:
    """100,000 bytes as one word, in each of two kinds: a quadratic merge would take minutes."""
    for kind in ("llama3", "gemma"):
        theirs = tokenizers.tokenizer(kind)
        with Tokenizer.open(bundle(tmp_path / kind, kind)) as ours:
            for text in ("a" * 100_000, "thefilmisawarm" * 7_000, "é" * 50_000, " " * 100_000):
                assert ours.encode(text) == theirs(text)["input_ids"]


def test_a_closed_tokenizer_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(bundle(tmp_path, "gpt2"))
    tokenizer.close()
    tokenizer.close()
    with pytest.raises(ZoExportError, match="closed"):
        tokenizer.encode("a")


def kind_of(part: str, **entry: object) -> Change:
    return lambda content: content.update({part: entry})


def model(**members: object) -> Change:
    return lambda content: content["model"].update(members)


def split(expression: str) -> Change:
    return kind_of(
        "pre_tokenizer",
        type="Split",
        pattern={"Regex": expression},
        behavior="Isolated",
        invert=False,
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            kind_of("normalizer", type="Precompiled", precompiled_charsmap=""),
            'normalizer.type: found "Precompiled"',
        ),
        (kind_of("normalizer", type="BertNormalizer"), "BertNormalizer"),
        (
            kind_of("pre_tokenizer", type="UnicodeScripts"),
            'pre_tokenizer.type: found "UnicodeScripts"',
        ),
        (kind_of("post_processor", type="Other"), 'post_processor.type: found "Other"'),
        (kind_of("decoder", type="CTC"), 'decoder.type: found "CTC"'),
        (model(type="Unigram", vocab=[["a", 0.5]]), 'model.type: found "Unigram"'),
        (model(type="WordPiece"), 'model.type: found "WordPiece"'),
        (model(dropout=0.1), "model.dropout: found 0.1"),
        (model(unk_token="none"), "model.unk_token"),
        (model(vocab={}), "model.merges"),
        (model(vocab=[]), "model.merges"),
        (model(vocab={}, merges=[]), "model.vocab"),
        (model(vocab={"a": 0, "b": 0}, merges=[]), "has twice"),
        (model(vocab={"a": 1 << 30}, merges=[]), "beyond 4194304"),
        (model(vocab={"a": -1}, merges=[]), "of another form"),
        (model(merges=[["a"]]), "of another form"),
        (model(merges=["a b c"]), "of another form"),
        (model(merges=[["nowhere", "b"]]), "merge 0 of tokens"),
        (split(r"\w+\b"), r"'\b'"),
        (split(r"[a&&b]"), "an intersection of classes"),
        (split(r"a{2}+"), "a repetition that is repeated"),
        (split(r"(?<n>a)"), "a group that begins with"),
        (split(r"\p{Greek_Extended}"), "the property 'Greek_Extended'"),
        (split(r"(a"), "a regular expression that is none"),
        (lambda content: content["added_tokens"][0].update(id=7), "added_tokens"),
        (
            lambda content: content["added_tokens"].append(content["added_tokens"][0]),
            "added_tokens",
        ),
    ],
)
def test_what_is_not_supported_is_one_message(tmp_path: Path, change: Change, says: str) -> None:
    with pytest.raises(BundleError) as raised:
        Tokenizer.open(bundle(tmp_path, "qwen2", change))
    text = str(raised.value).replace("\n", " ")
    assert says.split(": found ")[0] in text and says.split(": found ")[-1] in text
    assert "tokenizer.json" in text


def test_an_expression_that_takes_too_many_steps_is_a_message(tmp_path: Path) -> None:
    with (
        Tokenizer.open(bundle(tmp_path, "qwen2", split(r"(?:a|aa)+[bc]"))) as tokenizer,
        pytest.raises(DataError, match="10000000 steps"),
    ):
        tokenizer.encode("a" * 60)


def test_an_altered_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = bundle(tmp_path, "gpt2")
    file = folder / "tokenizer.json"
    file.write_bytes(file.read_bytes().replace(b"endoftext", b"endofTEXT"))
    with pytest.raises(BundleError, match="altered content"):
        Tokenizer.open(folder)


def test_a_bundle_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    folder = tokenizers.write_bundle(tmp_path / "bundle", tmp_path / "files")
    with pytest.raises(BundleError, match=r"tokenizer\.json"):
        Tokenizer.open(folder)
