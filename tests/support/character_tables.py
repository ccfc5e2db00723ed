"""The tables of ``runtime_ops/session/text/character_tables.inc``: what the library tokenizers knows of characters.

    python -m tests.support.character_tables

writes the file anew. The library asks several crates, each with its own version of Unicode, so that a mark for one of
its kinds is none for another: every character is asked of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import normalizers, pre_tokenizers

from tests.support.unicode_tables import decomposition_tables, table

PATH = Path(__file__).parents[2] / "runtime_ops" / "session" / "text" / "character_tables.inc"
CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def _bert(**on: bool) -> Any:
    parts = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    return normalizers.BertNormalizer(**{part: on.get(part, False) for part in parts})


def _left_out(normalizer: Any) -> Callable[[str], bool]:
    return lambda character: normalizer.normalize_str(character) == ""


def _cut_off(cut: Any) -> Callable[[str], bool]:
    """Whether a character is a word of its own."""
    return lambda character: len(cut.pre_tokenize_str(f"{character}{character}")) == 2


def _sets() -> dict[str, Callable[[str], bool]]:
    chinese = _bert(handle_chinese_chars=True)
    words = pre_tokenizers.Whitespace()
    return {
        "Marks": _left_out(normalizers.StripAccents()),
        "NonspacingMarks": _left_out(_bert(strip_accents=True)),
        "Controls": _left_out(_bert(clean_text=True)),
        "Chinese": lambda character: chinese.normalize_str(character) == f" {character} ",
        "Punctuation": _cut_off(pre_tokenizers.Punctuation()),
        "Numeric": _cut_off(pre_tokenizers.Digits(individual_digits=True)),
        "OfWords": lambda character: (
            len(words.pre_tokenize_str(f"a{character}")) == 1
            and words.pre_tokenize_str(character) != []
        ),
    }


def _ranges(inside: Callable[[str], bool]) -> Iterator[str]:
    codes = [ord(character) for character in CHARACTERS if inside(character)]
    start = 0
    for index, code in enumerate(codes, start=1):
        if index == len(codes) or codes[index] != code + 1:
            yield f"{{{codes[start]},{code}}}"
            start = index


def text() -> str:
    """The file's content."""
    lower = normalizers.Lowercase()
    lowered = {ord(character): lower.normalize_str(character) for character in CHARACTERS}
    changed = {code: made for code, made in lowered.items() if made != chr(code)}
    return "\n".join(
        [
            "// Made by python -m tests.support.character_tables from the library tokenizers.",
            *(table(f"Range k{name}", _ranges(inside)) for name, inside in _sets().items()),
            *decomposition_tables("Lower", changed),
            "",
        ]
    )


if __name__ == "__main__":
    PATH.write_text(text(), encoding="ascii")
