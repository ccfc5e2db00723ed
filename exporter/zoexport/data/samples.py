"""Sentence sets to train and evaluate on: whether sentences of reviews, or of newspapers' opinions, praise or blame.

The sentences and their scores come with the source archive of ``vaderSentiment`` (MIT licence): they are fetched,
never shipped. ``python -m zoexport.data.samples DIR`` writes ``train.jsonl`` and ``test.jsonl`` into a folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from zoexport.core.errors import ConfigError, DataError, ZoExportError, first_line
from zoexport.core.fetch import Package, cache_dir, downloaded
from zoexport.core.files import atomic_folder

PACKAGE = Package(
    "vaderSentiment",
    "3.3.2",
    "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
    source=True,
)
TEST_SIZE = 600
"""Held-out sentences, half of each kind."""
MIN_SCORE = 0.5
"""Sentences with a weaker mean score (on a scale of -4 to 4) are left out: people did not agree on them."""

_INNER = "additional_resources/hutto_ICWSM_2014.tar.gz"


@dataclasses.dataclass(frozen=True)
class Task:
    """Sentences of one kind.

    Attributes:
        words: description for users.
        file: file in the archive. prompt: template with a placeholder for the sentence.
        choices: completions of a positive and of a negative sentence.
    """

    words: str
    file: str
    prompt: str = "{} It was"
    choices: tuple[str, str] = (" great", " terrible")


TASKS = {
    "films": Task("film sentences", "movieReviewSnippets_GroundTruth.txt"),
    "products": Task("sentences of product reviews", "amazonReviewSnippets_GroundTruth.txt"),
    "editorials": Task(
        "sentences of newspapers' opinions",
        "nytEditorialSnippets_GroundTruth.txt",
        "{} This is",
        (" good", " bad"),
    ),
}


@dataclasses.dataclass(frozen=True)
class Samples:
    """The two files: JSON Lines with prompt, completion and choices."""

    train: Path
    test: Path


def sentences(folder: Path | None = None, task: str = "films") -> Samples:
    """Return a sentence set as files, fetched on first use.

    Args:
        folder: destination; None: a folder of the cache. Existing files are kept.
        task: one of :data:`TASKS`.

    Raises:
        DataError: the package cannot be fetched. ConfigError: the place cannot be written.
    """
    name = "sentences" if task == "films" else task
    folder = folder or cache_dir() / "samples" / f"{name}-{PACKAGE.version}"
    files = Samples(folder / "train.jsonl", folder / "test.jsonl")
    if files.train.is_file() and files.test.is_file():
        return files
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"output {folder}",
            found="a folder with other files",
            expected="a new or empty folder",
            fix="Choose another folder.",
        )
    with downloaded(PACKAGE, DataError) as archive:
        train, test = train_and_test(read_scores(archive, TASKS[task].file), TASKS[task])
    with atomic_folder(folder, replace=True) as output:
        write(output / "train.jsonl", train)
        write(output / "test.jsonl", test)
    return files


def read_scores(archive: Path, file: str) -> list[tuple[float, str]]:
    """Read the mean score and text of each sentence in a file of the source archive.

    Raises:
        DataError: the archive is damaged or contains something else.
    """
    try:
        with tarfile.open(archive) as outer:
            inner = _member(outer, f"{archive.name.removesuffix('.tar.gz')}/{_INNER}")
            with tarfile.open(fileobj=io.BytesIO(inner)) as scores:
                # Archives made on a Mac hold a ._ twin of every file.
                name = next(n for n in scores.getnames() if n.rpartition("/")[2] == file)
                text = _member(scores, name).decode("latin-1")
        found = []
        for line in text.splitlines():
            if line.strip():
                _, score, sentence = line.split("\t", 2)
                found.append((float(score), " ".join(sentence.split())))
    except (tarfile.TarError, OSError, KeyError, StopIteration, ValueError) as error:
        raise DataError(
            f"package {archive.name}",
            found=f"no readable {file} ({first_line(error)})",
            expected="scored sentences, one a line",
            fix="Fetch it again.",
        ) from error
    return found


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is no file")
    return file.read()


def train_and_test(
    scores: Sequence[tuple[float, str]], task: Task
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Return training and test examples in a fixed order, each half positive, half negative.

    Texts are ordered by hash, without a random generator; a sentence that occurs twice is in one
    of the two sets only.
    """
    kinds: tuple[list[str], list[str]] = ([], [])
    seen: set[str] = set()
    for score, text in scores:
        if text and abs(score) >= MIN_SCORE and text not in seen:
            seen.add(text)
            kinds[score < 0].append(text)
    for texts in kinds:
        texts.sort(key=_hash)
    pairs = min(map(len, kinds))
    examples: list[list[dict[str, object]]] = [
        [
            {
                "prompt": task.prompt.format(text),
                "completion": task.choices[kind],
                "choices": list(task.choices),
            }
            for text in kinds[kind][:pairs]
        ]
        for kind in (0, 1)
    ]
    held = TEST_SIZE // 2
    test = [*examples[0][:held], *examples[1][:held]]
    train = [*examples[0][held:], *examples[1][held:]]
    return _shuffled(train), _shuffled(test)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _shuffled(examples: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(examples, key=lambda example: _hash(f"order {example['prompt']}"))


def write(path: Path, examples: Sequence[dict[str, object]]) -> None:
    """Write JSON Lines."""
    lines = (json.dumps(example, ensure_ascii=False) + "\n" for example in examples)
    path.write_text("".join(lines), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """``python -m zoexport.data.samples DIR [--task NAME]``."""
    parser = argparse.ArgumentParser("python -m zoexport.data.samples", description=__doc__)
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--task", choices=sorted(TASKS), default="films")
    chosen = parser.parse_args(arguments)
    try:
        files = sentences(chosen.folder, chosen.task)
    except ZoExportError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    sys.stdout.write(f"{files.train}\n{files.test}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
