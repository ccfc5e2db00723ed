"""SQuAD's rules, and the questions of a data file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zoexport.core.errors import DataError
from zoexport.run.answers import exact_match, f1, normalized, read_questions
from zoexport.run.generate import Prompt


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        (" The  Eiffel Tower.", "eiffel tower"),
        ("a man, an apple; the sea", "man apple sea"),
        ("another theory", "another theory"),  # articles are whole words
        ("A", ""),
        ("it's (1.5)", "its 15"),
        ("Größe\tÉté\n", "größe été"),
        ("the-end a", "theend"),  # punctuation goes before articles do
    ],
)
def test_texts_are_compared_without_what_does_not_matter(answer: str, plain: str) -> None:
    assert normalized(answer) == plain


def test_the_best_reference_counts() -> None:
    assert exact_match(" the Sea!", ["mountain", "sea"]) == 1.0
    assert exact_match("the seas", ["mountain", "sea"]) == 0.0
    # Two of three words, both of the reference: precision 2/3, recall 1.
    assert f1("warm funny film", ["a dull film", "funny, warm"]) == pytest.approx(0.8)
    # A word that stands twice counts twice at most.
    assert f1("no no no", ["no no way"]) == pytest.approx(2 / 3)
    assert f1("one", ["two"]) == 0.0
    assert (f1("the", ["a"]), f1("", ["x"]), f1("x", ["an"])) == (1.0, 0.0, 0.0)


def lines(folder: Path, *records: Any) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_questions_of_a_file(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
    ]
    data = lines(
        tmp_path,
        {"prompt": "It was", "completion": " great"},
        {"prompt": "It was", "completion": " b", "choices": [" a", " b"]},
        {"prompt": "Who?", "completion": "I", "answers": ["me", "I"]},
        {"messages": turns},
    )
    found = read_questions(data)
    assert [question.references for question in found] == [
        (" great",),
        (" b",),
        ("me", "I"),
        ("4",),
    ]
    assert found[0].prompt == Prompt("It was")
    assert found[3].prompt == Prompt(messages=({"role": "user", "content": "2 + 2?"},))
    assert found[2].where == f"{data}:3"


@pytest.mark.parametrize(
    ("record", "part"),
    [
        ({"text": "a"}, "none of them"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "an answer alone"),
        ({"prompt": "", "completion": "b"}, "without a question"),
        ({"prompt": "a", "completion": "b", "answers": "b"}, "no list of texts"),
        ({"prompt": "a", "completion": "b", "answers": ["\ud800"]}, "not JSON"),
        ({"prompt": "a"}, "no answer"),
    ],
)
def test_lines_that_are_no_questions(tmp_path: Path, record: Any, part: str) -> None:
    with pytest.raises(DataError, match=part) as raised:
        read_questions(lines(tmp_path, record))
    assert "data.jsonl:1" in raised.value.where
