"""The tables of ``runtime_ops/session/text/unicode_tables.inc``: what the library tokenizers knows of normalization.

    python -m tests.support.unicode_tables

writes the file anew. Its version of Unicode is older than Python's, and tokens depend on it: so decompositions,
compositions and the characters that are reordered are asked of the library, and only combining classes are Python's.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import normalizers

PATH = Path(__file__).parents[2] / "runtime_ops" / "session" / "text" / "unicode_tables.inc"
_WIDTH = 120
_CHARACTERS = [chr(code) for code in range(0x80, 0x110000) if not 0xD800 <= code < 0xE000]
_HANGUL = range(0xAC00, 0xD7A4)
"""Syllables, which are composed by arithmetic."""


def _each(name: str, texts: list[str]) -> list[str]:
    """Every text normalized by itself: a line break combines with nothing."""
    form = getattr(normalizers, name)()
    return str(form.normalize_str("\n".join(texts))).split("\n")


def _decompositions(name: str) -> dict[int, str]:
    return {
        ord(character): changed
        for character, changed in zip(_CHARACTERS, _each(name, _CHARACTERS), strict=True)
        if changed != character and ord(character) not in _HANGUL
    }


def _compositions(canonical: dict[int, str]) -> dict[tuple[int, int], int]:
    # A full decomposition is that of a first part, of which there may be several, and a last character.
    of_text: dict[str, list[str]] = {}
    for code, text in canonical.items():
        of_text.setdefault(text, []).append(chr(code))
    candidates = [
        begin + text[-1]
        for text in canonical.values()
        for begin in (text[:-1], *of_text.get(text[:-1], ()))
        if len(begin) == 1
    ]
    return {
        (ord(pair[0]), ord(pair[1])): ord(composed)
        for pair, composed in zip(candidates, _each("NFC", candidates), strict=True)
        if len(composed) == 1
    }


def _classes() -> dict[int, int]:
    marks = [character for character in _CHARACTERS if unicodedata.combining(character)]
    # Behind a mark of a higher class, or before one of a lower, a mark moves.
    behind = _each("NFD", [f"a\u0345{mark}" for mark in marks])
    before = _each("NFD", [f"a{mark}\u0334" for mark in marks])
    return {
        ord(mark): unicodedata.combining(mark)
        for mark, first, second in zip(marks, behind, before, strict=True)
        if first[1] != "\u0345" or second[1] == "\u0334"
    }


def _ranges(classes: dict[int, int]) -> Iterator[tuple[int, int, int]]:
    start = last = None
    for code in sorted(classes):
        if start is not None and last == code - 1 and classes[start] == classes[code]:
            last = code
            continue
        if start is not None and last is not None:
            yield start, last, classes[start]
        start = last = code
    if start is not None and last is not None:
        yield start, last, classes[start]


def table(declaration: str, rows: Iterable[str]) -> str:
    lines, line = [], ""
    for row in rows:
        if len(line) + len(row) + 1 > _WIDTH:
            lines.append(line)
            line = ""
        line += row + ","
    return "\n".join([f"constexpr {declaration}[] = {{", *lines, line, "};"])


def decomposition_tables(name: str, entries: dict[int, str]) -> list[str]:
    pool = "".join(entries[code] for code in sorted(entries))
    rows = (f"{{{code},{len(entries[code])}}}" for code in sorted(entries))
    return [
        table(f"Decomposition k{name}", rows),
        table(f"uint32_t k{name}Text", (str(ord(character)) for character in pool)),
    ]


def text() -> str:
    """The file's content."""
    canonical = _decompositions("NFD")
    compatible = {
        code: changed
        for code, changed in _decompositions("NFKD").items()
        if canonical.get(code) != changed
    }
    compositions = sorted(_compositions(canonical).items())
    return "\n".join(
        [
            "// Made by python -m tests.support.unicode_tables from the library tokenizers.",
            *decomposition_tables("Canonical", canonical),
            *decomposition_tables("Compatible", compatible),
            table(
                "Composition kCompositions",
                (f"{{{a},{b},{made}}}" for (a, b), made in compositions),
            ),
            table(
                "CombiningRange kCombining",
                (f"{{{a},{b},{kind}}}" for a, b, kind in _ranges(_classes())),
            ),
            "",
        ]
    )


if __name__ == "__main__":
    PATH.write_text(text(), encoding="ascii")
