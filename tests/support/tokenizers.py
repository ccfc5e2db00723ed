"""Tokenizers with the pipelines of well-known models, made here from a small text, and texts that no one would write.

What a pipeline is, is known from the tokenizer.json files of those models; only vocabularies and merges are our own.
"""

from __future__ import annotations

import functools
import io
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceTrainer
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast
from transformers.utils import sentencepiece_model_pb2_new

from tests.support import bundles
from tests.support.tiny_models import SENTENCES
from zoexport.core import manifest

_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",  # noqa: RUF001
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_TEXT = [
    *SENTENCES,
    "It's we're they'll I'd DON'T THEY'VE 2024 1234567 3.14159 ... --- !!! ?? (a) [b] {c} <d>",
    "naïve café Ångström über straße ﬁn ŒUVRE crème brûlée",
    "Привет, мир! Как дела? Съешь ещё этих мягких французских булок.",
    "你好，世界。今天天气很好。 こんにちは世界 カタカナ 안녕하세요 세계",  # noqa: RUF001
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดีชาวโลก",
    "def f(x):\n\treturn x  # comment\n\n\n    if True:\n        pass\r\n",
    "🙂 👩‍👩‍👧 🇩🇪 👍🏽 emoji 🎉🎉🎉",
]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _byte_level(
    cut: pre_tokenizers.PreTokenizer, normalizer: Any = None, **options: Any
) -> Tokenizer:
    made = Tokenizer(models.BPE(**options))
    made.normalizer = normalizer
    made.pre_tokenizer = cut
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(_TEXT, trainer)
    return made


def _split(pattern: str, behavior: str = "isolated", invert: bool = False) -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def _bytes() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _pieces(normalizer: Any, cut: Any, decoder: Any, *, unknown: str = "<unk>") -> Tokenizer:
    """Like those that are converted from sentencepiece: bytes where a character is not in the vocabulary."""
    made = Tokenizer(models.BPE(unk_token=unknown, fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizer
    made.pre_tokenizer = cut
    made.decoder = decoder
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=["<unk>", "<s>", "</s>", *_BYTES],
        limit_alphabet=120,
        max_token_length=12,
    )
    made.train_from_iterator([word for line in _TEXT for word in line.split(" ")], trainer)
    # Bytes are no special tokens there.
    content = json.loads(made.to_str())
    content["added_tokens"] = [one for one in content["added_tokens"] if one["id"] < 3]
    made = Tokenizer.from_str(json.dumps(content))
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return made


def _fallback_decoder(*behind: Any) -> Any:
    return decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *behind]
    )


def _gpt2() -> Tokenizer:
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def _gpt2_prefixed() -> Tokenizer:
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))


def _smollm2() -> Tokenizer:
    return _byte_level(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    )


def _qwen2() -> Tokenizer:
    return _byte_level(pre_tokenizers.Sequence([_split(_QWEN), _bytes()]), normalizers.NFC())


def _llama3() -> Tokenizer:
    made = _byte_level(pre_tokenizers.Sequence([_split(_LLAMA3), _bytes()]), ignore_merges=True)
    made.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|im_start|> $A",
                pair="<|im_start|> $A <|im_start|> $B",
                special_tokens=[("<|im_start|>", 1)],
            ),
        ]
    )
    return made


def _o200k() -> Tokenizer:
    return _byte_level(pre_tokenizers.Sequence([_split(_O200K, "removed", True), _bytes()]))


def _deepseek() -> Tokenizer:
    return _byte_level(
        pre_tokenizers.Sequence([*(_split(one) for one in _DEEPSEEK), _bytes()]),
        normalizers.Sequence([]),
    )


def _falcon() -> Tokenizer:
    return _byte_level(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Punctuation("contiguous"),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
                pre_tokenizers.Digits(individual_digits=False),
                _split("[0-9][0-9][0-9]"),
            ]
        ),
        normalizers.NFKC(),
    )


def _llama2() -> Tokenizer:
    return _pieces(
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        None,
        _fallback_decoder(decoders.Strip(" ", 1, 0)),
    )


def _mistral() -> Tokenizer:
    """As Mistral's of version 0.3 are, and Llama's where ``legacy`` is off."""
    return _pieces(
        None,
        pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False),
        _fallback_decoder(decoders.Strip(" ", 1, 0)),
    )


def _metaspace() -> Tokenizer:
    return _pieces(
        normalizers.NFKC(),
        pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True),
        decoders.Sequence(
            [decoders.ByteFallback(), decoders.Metaspace("▁", prepend_scheme="always")]
        ),
    )


def _gemma() -> Tokenizer:
    return _pieces(
        normalizers.Replace(" ", "▁"),
        pre_tokenizers.Split(" ", "merged_with_previous"),
        _fallback_decoder(),
    )


def _phi3() -> Tokenizer:
    made = _llama2()
    made.add_special_tokens(
        [AddedToken(f"<|{name}|>", rstrip=True, normalized=False) for name in ("user", "end")]
    )
    made.add_tokens(
        [
            AddedToken("placeholder", single_word=True, lstrip=True, normalized=False),
            AddedToken("norm al", normalized=True),
        ]
    )
    return made


def _bert(*, lowercase: bool, cut: Any = None, clean: bool = True) -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30))
    made.normalizer = normalizers.BertNormalizer(clean_text=clean, lowercase=lowercase)
    made.pre_tokenizer = cut or pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(cleanup=lowercase)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=special, limit_alphabet=120)
    made.train_from_iterator(_TEXT, trainer)
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def _uncased() -> Tokenizer:
    return _bert(lowercase=True)


def _cased() -> Tokenizer:
    return _bert(lowercase=False)


def _words() -> Tokenizer:
    return _bert(lowercase=False, cut=pre_tokenizers.Whitespace(), clean=False)


@functools.cache
def charsmap(rule: str) -> bytes:
    """SentencePiece's table of this name."""
    return _charsmap(normalization_rule_name=rule)


def small_charsmap() -> bytes:
    """A table of a few rules: characters that become others, several or none, and pairs."""
    rules = [("é", "e\u0301"), ("ĳ", "ij"), ("\u0301", ""), ("Å", "A"), ("ﬁ", "fi")]
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="ascii") as file:
        for parts in rules:
            file.write(
                "\t".join(" ".join(f"{ord(one):X}" for one in part) for part in parts) + "\n"
            )
        file.flush()
        return _charsmap(normalization_rule_tsv=file.name)


def _charsmap(**rule: str) -> bytes:
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(_TEXT),
        model_writer=model,
        vocab_size=300,
        hard_vocab_limit=False,
        minloglevel=2,
        **rule,
    )
    read = sentencepiece_model_pb2_new.ModelProto()
    read.ParseFromString(model.getvalue())
    return bytes(read.normalizer_spec.precompiled_charsmap)


def _unigram(
    normalizer: Any, cut: Any, special: Sequence[str], *, byte_fallback: bool = False
) -> Tokenizer:
    """As those of sentencepiece's unigram models are."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizer
    made.pre_tokenizer = cut
    made.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=[*special], unk_token="<unk>")
    made.train_from_iterator(_TEXT, trainer)
    if byte_fallback:
        content = json.loads(made.to_str())
        content["model"]["byte_fallback"] = True
        content["model"]["vocab"] += [[byte, 0.0] for byte in _BYTES]
        made = Tokenizer.from_str(json.dumps(content))
        made.decoder = decoders.Sequence(
            [decoders.ByteFallback(), decoders.Metaspace("▁", prepend_scheme="always")]
        )
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    return made


def _blanks() -> Any:
    """Of T5 and XLM-R."""
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])


_XLMR = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def _t5() -> Tokenizer:
    return _unigram(
        normalizers.Precompiled(charsmap("nmt_nfkc")), _blanks(), ("<pad>", "<unk>", "</s>")
    )


def _xlmr() -> Tokenizer:
    """As its file is on the Hub, with blanks made one by an expression."""
    return _unigram(
        normalizers.Sequence(
            [
                normalizers.Precompiled(charsmap("nmt_nfkc_cf")),
                normalizers.Strip(left=False, right=True),
                normalizers.Replace(Regex(" {2,}"), "▁"),
            ]
        ),
        pre_tokenizers.Metaspace(),
        _XLMR,
    )


def _albert() -> Tokenizer:
    return _unigram(
        normalizers.Sequence(
            [
                normalizers.Replace("``", '"'),
                normalizers.NFKD(),
                normalizers.StripAccents(),
                normalizers.Lowercase(),
                normalizers.Precompiled(charsmap("nmt_nfkc")),
            ]
        ),
        _blanks(),
        _XLMR,
    )


def _likeliest() -> Tokenizer:
    """With bytes for what it lacks, in texts that are not cut into words."""
    return _unigram(
        None, pre_tokenizers.Metaspace(split=False), ("<unk>", "<s>", "</s>"), byte_fallback=True
    )


_MAKERS: Mapping[str, Callable[[], Tokenizer]] = {
    "gpt2": _gpt2,
    "gpt2-prefixed": _gpt2_prefixed,
    "smollm2": _smollm2,
    "qwen2": _qwen2,
    "llama3": _llama3,
    "o200k": _o200k,
    "deepseek": _deepseek,
    "falcon": _falcon,
    "llama2": _llama2,
    "mistral": _mistral,
    "metaspace": _metaspace,
    "gemma": _gemma,
    "phi3": _phi3,
    "bert-uncased": _uncased,
    "bert-cased": _cased,
    "words": _words,
    "t5": _t5,
    "xlm-r": _xlmr,
    "albert": _albert,
    "unigram-bytes": _likeliest,
}
KINDS = tuple(_MAKERS)


@functools.cache
def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer with the pipeline of that kind of model."""
    return PreTrainedTokenizerFast(tokenizer_object=_MAKERS[kind]())


def normalizing(form: str) -> PreTrainedTokenizerFast:
    """One that tells each byte of a text in this normal form."""
    made = _byte_level(_bytes(), getattr(normalizers, form)())
    return PreTrainedTokenizerFast(tokenizer_object=made)


def write_bundle(
    folder: Path,
    files: Path,
    *,
    changes: Mapping[str, Any] | None = None,
    write: Callable[[Path], object] = bundles.write_bundle,
) -> Path:
    """A bundle, of whatever model, with the tokenizer that ``files`` is a folder of; ``write`` makes the rest of it."""
    write(folder)
    names = sorted(path.name for path in files.iterdir() if path.is_file())
    for name in names:
        shutil.copyfile(files / name, folder / name)
    content = json.loads((folder / manifest.FILE).read_text("utf-8"))
    listed = [folder / name for name in (*content.pop("files"), *names)]
    for key in ("schema_version", "bundle_id"):
        content.pop(key)
    manifest.write(folder, {**content, "tokenizer": names, **(changes or {})}, listed)
    return folder


_RANGES = [
    (0x20, 0x7E),
    (0x00, 0x1F),
    (0x80, 0x24F),
    (0x2B0, 0x36F),  # modifiers, combining marks
    (0x370, 0x5FF),  # Greek, Cyrillic, Armenian, Hebrew
    (0x600, 0x6FF),
    (0x900, 0xDFF),  # India
    (0xE00, 0xEFF),
    (0x1100, 0x11FF),  # Hangul in letters
    (0x1E00, 0x1FFF),
    (0x2000, 0x206F),  # blanks, invisible ones
    (0x2070, 0x27BF),
    (0x3000, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0xF900, 0xFAFF),  # compatibility
    (0xFB00, 0xFDFF),
    (0xFE00, 0xFE0F),
    (0xFF00, 0xFFEF),
    (0x1F1E6, 0x1F1FF),
    (0x1F300, 0x1FAFF),
    (0x10000, 0x10FFFF),
]
_PIECES = [
    *("'s", "'S", "'re", "'LL", "'ſ", "'t", "'", "’s"),  # noqa: RUF001
    *(" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", " \n "),
    *("0", "12", "3456", "٣", "²", "Ⅷ", "½", "hello", "World", "ﬁ", "Å", "e\u0301", "é", "ß", "İ"),
    *("▁", "▁▁", "Ġ", "<0x41>", "<unk>", "\ufffd", "\u200d", "👩‍👩‍👧", "한", "ᄒ", "ᅡ", "ᆫ"),
]


def random_text(generator: random.Random, named: Sequence[str] = ()) -> str:
    """A text of mixed scripts, marks, controls, runs of blanks, contractions, and tokens that it names."""
    text = []
    for _ in range(generator.randint(0, 30)):
        kind = generator.random()
        if kind < 0.35:
            text.append(generator.choice(_PIECES) * generator.choice([1, 1, 1, 2, 5]))
        elif kind < 0.55:
            text.append(
                generator.choice(_TEXT)[generator.randint(0, 20) :][: generator.randint(1, 30)]
            )
        elif kind < 0.65 and named:
            text.append(generator.choice(named))
        else:
            low, high = generator.choice(_RANGES)
            codes = (generator.randint(low, high) for _ in range(generator.randint(1, 6)))
            text.extend(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
    return "".join(text)
