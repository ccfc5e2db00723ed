"""pack=true: rows against a packer that joins lists, every label once, and what cannot be packed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import tokenizers
from tests.support.tiny_models import masking_tokenizer
from tests.support.transformers_examples import tokenize_file
from tests.unit.session.test_read_examples import bundle, random_line, write
from zoexport.core.errors import ConfigError, DataError
from zoexport.data.examples import IGNORED, Candidate, Example, write_examples
from zoexport.session import Dataset
from zoexport.session.data import Tokenizer

END = 0
"""The id of GPT-2's <|endoftext|> in the tests' tokenizer."""


def rows_of(
    lines: Sequence[dict[str, Any]], folder: Path, max_length: int, special: set[int]
) -> list[Example]:
    """The rows of a file's lines, from its examples without packing: a stream of tokens that is cut."""
    rows: list[Example] = []
    open_row: tuple[list[int], list[int]] = ([], [])

    def end() -> None:
        nonlocal open_row
        if open_row[0]:
            rows.append(Example([Candidate(*open_row)], 0))
        open_row = ([], [])

    for line in lines:
        # A text is read as a whole where rows are long enough.
        long = 10_000 if "text" in line else max_length
        (example,) = tokenize_file(
            write(folder, [line]), folder / "files", long, ends=[END]
        ).examples
        if len(example.candidates) > 1:
            rows.append(example)
            continue
        candidate = example.candidates[0]
        tokens, labels = list(candidate.tokens), list(candidate.labels)
        ended = not open_row[0] or open_row[0][-1] == END
        between = [] if ended or tokens[0] in special else [END]
        least = len(between) + (1 if "text" in line else len(tokens))
        if len(open_row[0]) + least > max_length:
            end()
            between = []
        open_row = (open_row[0] + between, open_row[1] + [IGNORED] * len(between))
        while any(label != IGNORED for label in labels):
            if len(open_row[0]) == max_length:
                end()
            room = max_length - len(open_row[0])
            open_row = (open_row[0] + tokens[:room], open_row[1] + labels[:room])
            tokens, labels = tokens[room:], labels[room:]
    end()
    return rows


@pytest.mark.parametrize("max_length", [2, 3, 7, 24, 400])
@pytest.mark.parametrize("kind", ["gpt2", "llama3"])
def test_rows_are_those_of_a_stream_that_is_cut(tmp_path: Path, kind: str, max_length: int) -> None:
    theirs = tokenizers.tokenizer(kind)
    made = bundle(tmp_path, theirs, max_length, end_tokens=(END,))
    generator = random.Random(f"{kind} {max_length}")
    lines = []
    while len(lines) < 60:
        line = random_line(generator)
        try:
            with Dataset() as dataset, Tokenizer.open(made) as tokenizer:
                dataset.read(write(tmp_path, [line]), tokenizer)
        except DataError:
            continue  # nothing of it can be predicted
        lines.append(line)
    special = {token for token, added in theirs.added_tokens_decoder.items() if added.special}
    expected = rows_of(lines, tmp_path, max_length, special)
    write_examples(expected, tmp_path / "rows.jsonl")
    path = write(tmp_path, lines)
    with Dataset() as packed, Dataset() as stream, Tokenizer.open(made) as tokenizer:
        packed.read(path, tokenizer, pack=True)
        stream.load(tmp_path / "rows.jsonl")
        assert len(packed) == len(expected)
        assert packed.digest() == stream.digest()


def test_every_label_of_every_text_is_predicted_once(tmp_path: Path) -> None:
    """In fewer rows than there are texts; without packing the long ones lose most of theirs."""
    made = bundle(tmp_path, tokenizers.tokenizer("gpt2"), 24, end_tokens=(END,))
    generator = random.Random(3)
    words = [generator.choice((" a", " film", " warm", " great")) for _ in range(900)]
    lines = [{"text": "".join(words[i : i + 30])} for i in range(0, 600, 30)]
    lines += [{"text": "It was great"}] * 40
    path = write(tmp_path, lines)
    whole = tokenize_file(path, tmp_path / "files", 10_000, ends=[END]).examples
    expected = [label for one in whole for label in one.candidates[0].labels if label != IGNORED]
    found: list[int] = []
    with Dataset() as packed, Dataset() as apart, Tokenizer.open(made) as tokenizer:
        assert packed.read(path, tokenizer, pack=True).shortened == 0
        assert apart.read(path, tokenizer).shortened == 20
        packed.write(tmp_path / "rows.jsonl")
        assert len(packed) < len(apart) == 60
    for line in (tmp_path / "rows.jsonl").read_text().splitlines():
        (row,) = json.loads(line)["candidates"]
        assert len(row["tokens"]) <= 24
        found += [label for label in row["labels"] if label != IGNORED]
    assert found == expected


def test_what_cannot_be_packed_is_said(tmp_path: Path) -> None:
    made = bundle(tmp_path, tokenizers.tokenizer("gpt2"), 24)
    path = write(tmp_path, [{"prompt": "It was", "chosen": " great", "rejected": " bad"}])
    with Dataset() as dataset, Tokenizer.open(made) as tokenizer:
        with pytest.raises(ConfigError, match="setting 'pack': found 'yes'"):
            dataset.read(path, tokenizer, pack="yes")
        for loss in ("choices", "dpo", "orpo"):
            with pytest.raises(ConfigError, match="pack: found on, with a loss that compares"):
                dataset.read(path, tokenizer, loss=loss, pack=True)
        assert len(dataset) == 0


def test_an_encoder_sees_the_whole_row(tmp_path: Path) -> None:
    made = bundle(tmp_path, masking_tokenizer(), 24, masked=True)
    path = write(tmp_path, [{"prompt": "It was <mask>", "completion": " great"}])
    with (
        Dataset() as dataset,
        Tokenizer.open(made) as tokenizer,
        pytest.raises(ConfigError, match="pack: found on, of a masked language model"),
    ):
        dataset.read(path, tokenizer, pack=True)
