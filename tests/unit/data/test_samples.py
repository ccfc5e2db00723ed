"""The sentence set: reading, balance, order, and that it is fetched once."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zoexport.core.errors import ConfigError, DataError, ZoExportError
from zoexport.core.fetch import Package
from zoexport.data import samples

FILMS = samples.TASKS["films"]


def _scores(praise: int, blame: int) -> list[tuple[float, str]]:
    return [
        *((1.0 + i / praise, f"A good film, number {i}.") for i in range(praise)),
        *((-0.5 - i / blame, f"A bad film, number {i}.") for i in range(blame)),
    ]


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def _archive(folder: Path, lines: bytes) -> Path:
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as archive:
        _add(archive, "hutto/._movieReviewSnippets_GroundTruth.txt", b"\x00")
        _add(archive, "hutto/movieReviewSnippets_GroundTruth.txt", lines)
    path = folder / "vaderSentiment-3.3.2.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        name = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
        _add(archive, name, inner.getvalue())
    return path


def _lines(scores: list[tuple[float, str]]) -> bytes:
    return "".join(f"{i}_1\t{s}\t{text}\n" for i, (s, text) in enumerate(scores)).encode("latin-1")


def _kind_count(examples: list[dict[str, Any]], choice: str) -> int:
    return sum(example["completion"] == choice for example in examples)


def _kinds(examples: list[dict[str, Any]]) -> list[int]:
    return [_kind_count(examples, choice) for choice in FILMS.choices]


def test_scores_are_read_as_latin_1(tmp_path: Path) -> None:
    archive = _archive(tmp_path, _lines([(1.25, "A  naïve café   film"), (-2.0, "tab\tinside")]))
    assert samples.read_scores(archive, FILMS.file) == [
        (1.25, "A naïve café film"),
        (-2.0, "tab inside"),
    ]


@pytest.mark.parametrize("lines", [b"no columns\n", b"1\tnot a number\ttext\n"])
def test_other_content_is_refused(tmp_path: Path, lines: bytes) -> None:
    with pytest.raises(DataError, match="no readable movieReviewSnippets"):
        samples.read_scores(_archive(tmp_path, lines), FILMS.file)
    other = tmp_path / "other-1.0.tar.gz"
    other.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"other-1\.0"):
        samples.read_scores(other, FILMS.file)


def test_split_is_balanced_disjoint_and_fixed() -> None:
    scores = _scores(900, 700)
    train, test = samples.train_and_test(scores, FILMS)
    assert _kinds(test) == [300, 300]
    assert _kinds(train) == [400, 400]
    prompts = [example["prompt"] for example in [*train, *test]]
    assert len(set(prompts)) == 1400
    assert all(str(prompt).endswith(". It was") for prompt in prompts)
    for example in test:
        praise = "good" in str(example["prompt"])
        assert example["completion"] == (" great" if praise else " terrible")
        assert example["choices"] == [" great", " terrible"]
    # The order depends on the texts only.
    assert samples.train_and_test(scores[::-1], FILMS) == (train, test)
    # Both kinds are mixed: the first hundred are not all of one.
    assert 30 < _kinds(train[:100])[0] < 70


def test_weak_and_repeated_sentences_are_left_out() -> None:
    scores = [*_scores(400, 400), *[(0.49, f"weak {i}") for i in range(50)]]
    repeated = [*scores, *[(1.0, "A good film, number 7.")] * 9]
    once = samples.train_and_test(_scores(400, 400), FILMS)
    assert samples.train_and_test(repeated, FILMS) == once


def test_set_is_fetched_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fetched = []

    @contextlib.contextmanager
    def download(package: Package, error: type[ZoExportError]) -> Iterator[Path]:
        fetched.append((package.name, package.source, error))
        yield _archive(tmp_path, _lines(_scores(400, 350)))

    monkeypatch.setattr(samples, "downloaded", download)
    monkeypatch.setenv("ZOEXPORT_CACHE", str(tmp_path / "cache"))
    files = samples.sentences()
    assert files.train.is_relative_to(tmp_path / "cache")
    assert samples.sentences() == files
    assert fetched == [("vaderSentiment", True, DataError)]
    test = [json.loads(line) for line in files.test.read_text(encoding="utf-8").splitlines()]
    assert len(test) == samples.TEST_SIZE and _kinds(test) == [300, 300]
    train = files.train.read_text(encoding="utf-8").splitlines()
    assert len(train) == 100
    other = samples.sentences(tmp_path / "other")
    assert other.train.read_bytes() == files.train.read_bytes()


def test_folder_with_other_files_is_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="other files"):
        samples.sentences(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([], [str(tmp_path), "--task", "songs"]):
        with pytest.raises(SystemExit, match="2"):
            samples.main(arguments)
        assert "usage" in capsys.readouterr().err
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert samples.main([str(tmp_path / "new")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: package vaderSentiment 3.3.2: found a download")
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "least"), [("films", 8000), ("products", 1500), ("editorials", 1500)]
)
def test_real_set(task: str, least: int, tmp_path: Path) -> None:
    files = samples.sentences(tmp_path / "set", task)
    train = [json.loads(line) for line in files.train.read_text(encoding="utf-8").splitlines()]
    assert len(train) > least
    assert len({_kind_count(train, choice) for choice in samples.TASKS[task].choices}) == 1
