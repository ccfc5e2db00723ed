"""Text in and out of a session that generates: tokenizer, stop strings, conversations, kept caches, sliding."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.support.chat_templates import said
from tests.support.compiled import Compiler
from tests.support.generation import greedy, prompt_of, random_adapter, reference
from tests.support.tiny_models import VOCAB_SIZE, save_tiny
from zoexport.cli.main import run
from zoexport.core.errors import ConfigError, DataError, ZoExportError
from zoexport.session import Sampling, Session, memory_usage

pytestmark = pytest.mark.parity
PROMPT = "The film is a warm and café"
ALL: dict[str, Any] = {"lora__target_modules": "all-linear", "generate": True}


@pytest.fixture(scope="module")
def bundle(compiler: Compiler) -> Path:
    return compiler.bundle("llama", "mebp", **ALL)


@pytest.fixture
def session(bundle: Path) -> Iterator[Session]:
    """With an adapter under which the tiny model says many tokens and not one again and again."""
    with Session.open(bundle) as opened:
        random_adapter(opened)
        yield opened


@pytest.fixture(scope="module")
def tokenizer(bundle: Path) -> Any:
    return AutoTokenizer.from_pretrained(bundle)


def test_a_text_is_its_tokens(session: Session, tokenizer: Any) -> None:
    pieces: list[str] = []
    made = session.generate(PROMPT, max_new_tokens=60, stop_tokens=(), on_text=pieces.append)
    plain = session.generate(tokenizer(PROMPT)["input_ids"], max_new_tokens=60, stop_tokens=())
    assert made.tokens == plain.tokens
    assert plain.text is None
    assert made.text == "".join(pieces) == tokenizer.decode(made.tokens, skip_special_tokens=True)
    assert len(pieces) > 10


def test_characters_are_never_cut(session: Session, tokenizer: Any) -> None:
    """Tokens of half characters, one after another, as a callback sees them."""
    pieces: list[str] = []
    for seed in range(3):
        made = session.generate(
            "naïve",
            max_new_tokens=60,
            stop_tokens=(),
            sampling=Sampling(temperature=2.0, seed=seed),
            on_text=pieces.append,
        )
        assert made.text == tokenizer.decode(made.tokens, skip_special_tokens=True)
    assert len(pieces) > 30


def test_stop_strings_end_a_text_wherever_they_lie(session: Session) -> None:
    free = session.generate(PROMPT, max_new_tokens=60, stop_tokens=())
    text = free.text or ""
    generator = random.Random(5)
    for _ in range(25):
        begin = generator.randrange(len(text) - 10)
        stop = text[begin : begin + generator.randint(1, 6)]
        other = text[begin + 6 : begin + 10]
        pieces: list[str] = []
        made = session.generate(
            PROMPT,
            max_new_tokens=60,
            stop_tokens=(),
            stop=(other, "not in the text", stop),
            on_text=pieces.append,
        )
        end = min(text.index(stop), text.index(other))
        assert made.text == "".join(pieces) == text[:end]
        assert made.stop == "string"
        assert made.tokens == free.tokens[: len(made.tokens)]
        assert len(made.tokens) < 60 or end > 0
    made = session.generate(PROMPT, max_new_tokens=60, stop_tokens=(), stop=["not in the text"])
    assert (made.text, made.stop) == (text, "length")


def test_a_stop_string_that_only_begins_is_part_of_the_text(session: Session) -> None:
    text = session.generate(PROMPT, max_new_tokens=30, stop_tokens=()).text or ""
    made = session.generate(PROMPT, max_new_tokens=30, stop_tokens=(), stop=[text[-3:] + "!"])
    assert (made.text, made.stop) == (text, "length")


def test_messages_are_what_the_template_writes(session: Session, tokenizer: Any) -> None:
    messages = [said("system", "Be brief."), said("user", "Is the film a good one?")]
    tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    made = session.generate(messages=messages, max_new_tokens=20, stop_tokens=())
    assert made.tokens == session.generate(tokens, max_new_tokens=20, stop_tokens=()).tokens
    assert made.prompt_tokens == len(tokens)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_kept_caches_change_nothing(compiler: Compiler, name: str) -> None:
    """A conversation read on, and one read anew: also where a window has lost what came before."""
    with Session.open(compiler.bundle(name, "mebp", **ALL)) as session:
        random_adapter(session)
        prompt = prompt_of(9, VOCAB_SIZE)
        read = 0
        for turn in range(4):
            options: Any = {"max_new_tokens": 7, "stop_tokens": ()}
            fresh = session.generate(prompt, **options)
            kept = session.generate(prompt, keep=True, **options)
            again = session.generate(prompt, keep=True, **options)
            assert kept.tokens == fresh.tokens == again.tokens
            assert kept.kept_tokens == 0  # the one before did not keep
            read += again.kept_tokens
            prompt = [*prompt, *fresh.tokens[:5], *prompt_of(4 + turn, VOCAB_SIZE)]
            on = session.generate(prompt, keep=True, **options)
            read += on.kept_tokens
            assert on.tokens == session.generate(prompt, **options).tokens
        assert read > 20 if name == "llama" else read >= 0
        # Other values are other keys.
        session.generate(prompt, keep=True, **options)
        assert session.generate(prompt, untrained=True, **options).kept_tokens == 0
        session.generate(prompt, keep=True, **options)
        session.forget()
        assert session.generate(prompt, **options).kept_tokens == 0


def test_sliding_reads_the_last_part_again(compiler: Compiler) -> None:
    bundle = compiler.bundle("llama", "mebp", **ALL, generate__context=31)
    model = reference(compiler.model("llama"), bundle)
    with Session.open(bundle) as session:
        for length, first in ((20, 20), (31, 16), (50, 16)):
            prompt = prompt_of(length, VOCAB_SIZE)
            made = session.generate(prompt, max_new_tokens=60, stop_tokens=(), sliding=True)
            window = prompt[-first:]
            expected = []
            for _ in range(60):
                if len(window) > 31:  # as many as fit, and the one that is to be read
                    window = window[-16:]
                (token,) = greedy(model, window, 1)
                expected.append(token)
                window = [*window, token]
            assert list(made.tokens) == expected
            assert (made.stop, made.prompt_tokens) == ("length", length)


def test_memory_returns(bundle: Path) -> None:
    def once(session: Session) -> None:
        session.generate(PROMPT, max_new_tokens=20, stop=["nothing of it"], keep=True)
        session.forget()

    with Session.open(bundle) as session:
        once(session)
        before = memory_usage().anonymous_bytes
        for _ in range(10):
            once(session)
        assert memory_usage().anonymous_bytes - before < 1 << 20


@pytest.mark.parametrize(
    ("options", "kind", "part"),
    [
        ({"prompt": "a", "stop": [""]}, ConfigError, "stop string: found an empty text"),
        ({"prompt": "a", "stop": ["\ud800"]}, DataError, "no character of UTF-8"),
        ({"prompt": "a\ud800"}, DataError, "no character of UTF-8"),
        ({"prompt": "a", "messages": [said("user", "b")]}, ConfigError, "more than one"),
        ({"messages": [("nobody", "b")]}, ZoExportError, "nobody"),
        ({"prompt": "a " * 2000}, ConfigError, "generate.context"),
        ({"prompt": "a", "adapter": "none"}, ConfigError, "no adapter of this name"),
    ],
)
def test_what_cannot_be_used(
    bundle: Path, options: dict[str, Any], kind: type[ZoExportError], part: str
) -> None:
    with Session.open(bundle) as session, pytest.raises(kind, match=part):
        session.generate(**options)


def sentence_pieces() -> PreTrainedTokenizerFast:
    """As Llama 2's: a blank is written before a text, and its first one is left out of what tokens say."""
    words = ["\u2581", *"Itwasgre", "wa", "was", "\u2581was", "gr", "gre", "\u2581gre"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    merges = [
        ("w", "a"),
        ("wa", "s"),
        ("\u2581", "was"),
        ("g", "r"),
        ("gr", "e"),
        ("\u2581", "gre"),
    ]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    made = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def test_the_blank_before_the_first_word(tmp_path: Path) -> None:
    """Prompt and text together are what transformers makes of all tokens."""
    model = save_tiny("llama", tmp_path / "model", tokenizer=False)
    tokenizer = sentence_pieces()
    tokenizer.save_pretrained(model)
    bundle = tmp_path / "bundle"
    options = ["--target", "host", "--method", "mebp", "-o", str(bundle), "--no-verify"]
    assert run(["compile", str(model), *options, "--set", "max_length=16"]) == 0
    begins = set()
    with Session.open(bundle) as session:
        random_adapter(session)
        for seed in range(40):
            sampling = Sampling(temperature=3.0, seed=seed)
            pieces: list[str] = []
            made = session.generate(
                "It was",
                max_new_tokens=4,
                stop_tokens=(),
                sampling=sampling,
                on_text=pieces.append,
            )
            prompt = tokenizer("It was")["input_ids"]
            whole = tokenizer.decode([*prompt, *made.tokens], skip_special_tokens=True)
            assert "It was" + (made.text or "") == whole and "".join(pieces) == made.text
            begins.add((made.text or "-")[0])
    assert " " in begins
