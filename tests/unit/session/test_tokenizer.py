"""The session's tokenizer against transformers, over pipelines of known models and texts that no one would write."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import character_tables, tokenizers, unicode_tables
from tests.support.text_checks import compare
from zoexport.core.errors import BundleError, DataError, ZoExportError
from zoexport.session.data import Tokenizer

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
    assert character_tables.PATH.read_text("ascii") == character_tables.text()


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
    """100,000 bytes as one word, in each kind of model: a quadratic time would be minutes."""
    for kind in ("llama3", "gemma", "unigram-bytes", "t5", "bert-cased"):
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


def pieces(*entries: object, unk_id: int | None = 0) -> Change:
    return model(type="Unigram", vocab=list(entries), unk_id=unk_id, merges=[])


def encoded(units: bytes, texts: bytes) -> str:
    """A table of the normalizer Precompiled, whose trie has a root beside these units."""
    trie = bytes(4) + units
    return base64.b64encode(len(trie).to_bytes(4, "little") + trie + texts).decode()


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
        (kind_of("normalizer", type="Nmt"), 'normalizer.type: found "Nmt"'),
        (kind_of("normalizer", type="BertNormalizer"), "normalizer.lowercase"),
        (
            kind_of("normalizer", type="Replace", pattern={"String": "a"}, content="b" * 1025),
            "normalizer.content",
        ),
        (kind_of("normalizer", type="Prepend", prepend="b" * 1025), "normalizer.prepend"),
        (
            kind_of("decoder", type="Replace", pattern={"String": "a"}, content="b" * 1025),
            "decoder.content",
        ),
        *(
            (
                kind_of("normalizer", type="Precompiled", precompiled_charsmap=table),
                "normalizer.precompiled_charsmap",
            )
            for table in ("", "AAA", "AAAA", "A===", "BAAAAAAA*AAA", encoded(b"", b"\xff"))
        ),
        (
            kind_of("pre_tokenizer", type="UnicodeScripts"),
            'pre_tokenizer.type: found "UnicodeScripts"',
        ),
        (kind_of("post_processor", type="Other"), 'post_processor.type: found "Other"'),
        (kind_of("decoder", type="CTC"), 'decoder.type: found "CTC"'),
        (model(type="WordLevel"), 'model.type: found "WordLevel"'),
        (model(type="WordPiece"), "model.unk_token"),
        (model(type="WordPiece", unk_token="none"), "model.unk_token"),
        (model(type="WordPiece", unk_token="a", vocab={"a": 0, "b" * 1025: 1}), "at most 1024"),
        (model(type="WordPiece", vocab=[["a", 0.5]], merges=[]), "model.vocab"),
        (model(vocab=[["a", 0.5]], merges=[]), "model.vocab"),
        (model(type="Unigram"), "model.vocab"),
        (pieces(["a", 0.5], unk_id=1), "model.unk_id"),
        (pieces(["a", 0.5], unk_id=None), "model.unk_id"),
        (pieces(), "model.vocab"),
        (pieces(["b" * 1025, 0.5]), "at most 1024"),
        (pieces(["a", 0.5], ["a", 1]), "has twice"),
        *(
            (pieces(entry), "of another form")
            for entry in (["a"], [0.5, "a"], ["a", 1, 2], ["a", "b"], [], ["a", None], [["a", 1]])
        ),
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


@pytest.mark.parametrize("kind", ["falcon", "smollm2", "bert-uncased", "bert-cased", "words", "t5"])
def test_every_character_between_others(tmp_path: Path, kind: str) -> None:
    """Where it is cut, and what it becomes: the library's versions of Unicode, in each of its parts."""
    theirs = tokenizers.tokenizer(kind)
    characters = character_tables.CHARACTERS
    with Tokenizer.open(bundle(tmp_path, kind)) as ours:
        for start in range(0, len(characters), 4000):
            text = "a".join(characters[start : start + 4000])
            assert ours.encode(text) == theirs(text)["input_ids"], hex(start)


@pytest.mark.parametrize("kind", ["t5", "xlm-r"])
def test_characters_with_marks_become_what_the_table_says(tmp_path: Path, kind: str) -> None:
    """What is looked for as a whole: ligatures and the like before marks, ends of lines, joiners."""
    generator = random.Random(4)
    bases = [
        chr(code)
        for start, end in ((0x20, 0x250), (0x2000, 0x2190), (0x3200, 0x3400), (0xFB00, 0xFB50))
        for code in range(start, end)
    ]
    marks = [*map(chr, (*range(0x300, 0x370), 0x591, 0x64B, 0x600, 0x903, 0x200D, 0xFE0F)), *"\r\n"]
    theirs = tokenizers.tokenizer(kind)
    with Tokenizer.open(bundle(tmp_path, kind)) as ours:
        for _ in range(500):
            text = "".join(
                generator.choice(bases)
                + "".join(generator.choices(marks, k=generator.randint(0, 3)))
                for _ in range(8)
            )
            assert ours.encode(text) == theirs(text)["input_ids"], ascii(text)


def test_a_table_that_leads_anywhere_crashes_nothing(tmp_path: Path) -> None:
    """Units of a trie that no one built, with bits that lead out of it and into the middle of characters."""
    generator = random.Random(6)
    for number in range(60):
        # Labels that match, and offsets that are mostly near.
        units = b"".join(
            (
                generator.choice([*range(0x20, 0x80), generator.randrange(256)])
                | generator.getrandbits(1) << 8
                | generator.choice([0, 1, 2, 64, generator.getrandbits(21)]) << 10
            ).to_bytes(4, "little")
            for _ in range(200)
        )
        root = encoded(units, "é\0ab\0".encode())
        change = kind_of("normalizer", type="Precompiled", precompiled_charsmap=root)
        with Tokenizer.open(bundle(tmp_path / str(number), "qwen2", change)) as ours:
            tokens = ours.encode("".join(map(chr, range(0x180))))
            assert tokens and "\ufffd" not in ours.decode(tokens)


def test_an_expression_that_takes_too_many_steps_is_a_message(tmp_path: Path) -> None:
    with (
        Tokenizer.open(bundle(tmp_path, "qwen2", split(r"(?:a|aa)+[bc]"))) as tokenizer,
        pytest.raises(DataError, match="10000000 steps"),
    ):
        tokenizer.encode("a" * 60)


def test_a_text_that_becomes_too_long_is_a_message(tmp_path: Path) -> None:
    change = kind_of("normalizer", type="Replace", pattern={"String": "a"}, content="b" * 1024)
    with (
        Tokenizer.open(bundle(tmp_path, "qwen2", change)) as tokenizer,
        pytest.raises(DataError, match="becomes longer than 268435456 bytes"),
    ):
        tokenizer.encode("a" * (300 << 10))


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
