"""Templates on invented rows in the published layouts: those of the library datasets and of the original releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.chat_templates import chatting
from tests.support.tiny_models import CHAT_TEMPLATE
from zoexport.core.errors import ConfigError, DataError
from zoexport.data.sources import DataSource, opened
from zoexport.data.templates import load, names
from zoexport.data.text_entry import chat_entry
from zoexport.session.data import Tokenizer

NLI = {"premise": "A cat sleeps.", "hypothesis": "A cat is awake.", "idx": 0}
RTE = 'A cat sleeps.\nDoes this mean that "A cat is awake." is true? Yes or No?\n'
CB = 'Suppose A cat sleeps. Can we infer that "A cat is awake."? Yes, No, or Maybe?\n'
BOOLQ = {"question": "is tea hot", "passage": "Tea is hot."}
WIC = {"word": "bank", "sentence1": "A bank.", "sentence2": "The bank."}
WIC_PROMPT = 'Does the word "bank" have the same meaning in these two sentences? Yes, No?\nA bank.\nThe bank.\n'
MULTIRC = 'Ann ran.\nQuestion: Who ran?\nI found this answer "%s". Is that correct? Yes or No?\n'
COPA = {"premise": "I fell. ", "choice1": "I slipped.", "choice2": "The Floor was wet."}
RECORD = "Ann met Bob.\n- Bob waved.\n-"
RECORD_TEXT = "Ann met Bob.\n@highlight\nBob waved."
SQUAD = "Title: Tea\nContext: Tea is hot.\nQuestion: What is hot?\nAnswer:"
DROP = "Passage: Two cats, one dog.\nQuestion: How many cats?\nAnswer:"


def compared(prompt: str, completion: str, *choices: str) -> dict[str, Any]:
    return {"prompt": prompt, "completion": completion, "choices": list(choices)}


YES = ("Yes", "No")
NO = ("No", "Yes")
CASES: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    (
        "sst2",
        {"idx": 0, "sentence": "a warm film ", "label": 1},
        [compared("a warm film It was", " great", " terrible", " great")],
    ),
    ("rte", {**NLI, "label": 1}, [compared(RTE, "No", *YES)]),
    ("rte", {**NLI, "label": "entailment"}, [compared(RTE, "Yes", *YES)]),
    (
        "rte",
        {"sentence1": NLI["premise"], "sentence2": NLI["hypothesis"], "label": "not_entailment"},
        [compared(RTE, "No", *YES)],
    ),
    ("cb", {**NLI, "label": 2}, [compared(CB, "Maybe", *YES, "Maybe")]),
    ("cb", {**NLI, "label": "contradiction"}, [compared(CB, "No", *YES, "Maybe")]),
    ("boolq", {**BOOLQ, "label": 1}, [compared("Tea is hot. Is tea hot?\n", "Yes", *NO)]),
    ("boolq", {**BOOLQ, "label": False}, [compared("Tea is hot. Is tea hot?\n", "No", *NO)]),
    (
        "boolq",
        {"question": "Is it?", "passage": "P.", "answer": True, "title": "T"},
        [compared("P. Is it?\n", "Yes", *NO)],
    ),
    ("wic", {**WIC, "label": 0, "start1": 2}, [compared(WIC_PROMPT, "No", *NO)]),
    ("wic", {**WIC, "label": True, "version": 1.1}, [compared(WIC_PROMPT, "Yes", *NO)]),
    (
        "multirc",
        {"paragraph": "Ann ran.", "question": "Who ran?", "answer": "Ann", "label": 1},
        [compared(MULTIRC % "Ann", "Yes", *NO)],
    ),
    (
        "multirc",
        {
            "idx": 0,
            "passage": {
                "text": "Ann ran.",
                "questions": [
                    {
                        "question": "Who ran?",
                        "answers": [{"text": "Ann", "label": 1}, {"text": "Bob", "label": 0}],
                    }
                ],
            },
        },
        [compared(MULTIRC % "Ann", "Yes", *NO), compared(MULTIRC % "Bob", "No", *NO)],
    ),
    (
        "copa",
        {**COPA, "question": "cause", "label": 1},
        [compared("I fell because", " the Floor was wet.", " I slipped.", " the Floor was wet.")],
    ),
    (
        "copa",
        {**COPA, "question": "effect", "label": 0},
        [compared("I fell so", " I slipped.", " I slipped.", " the Floor was wet.")],
    ),
    (
        "record",
        {
            "passage": RECORD_TEXT,
            "query": "@placeholder left.",
            "entities": ["Ann", "Bob", "Robert"],
            "answers": ["Bob", "Robert"],
        },
        [compared(RECORD, " Bob left.", " Ann left.", " Bob left.")],
    ),
    (
        "record",
        {
            "passage": {
                "text": RECORD_TEXT,
                "entities": [
                    {"start": 0, "end": 2},
                    {"start": 8, "end": 10},
                    {"start": 24, "end": 26},
                ],
            },
            "qas": [
                {
                    "query": "@placeholder left.",
                    "answers": [{"start": 8, "end": 10, "text": "Bob"}],
                }
            ],
        },
        [compared(RECORD, " Bob left.", " Ann left.", " Bob left.")],
    ),
    (
        "squad",
        {
            "id": "1",
            "title": "Tea",
            "context": "Tea is hot.",
            "question": " What is hot?",
            "answers": {"text": ["Tea", "tea", "Tea"], "answer_start": [0, 0, 0]},
        },
        [{"prompt": SQUAD, "completion": " Tea\n", "answers": ["Tea", "tea"]}],
    ),
    (
        "drop",
        {
            "section_id": "s",
            "passage": "Two cats, one dog.",
            "question": "How many cats?",
            "answers_spans": {"spans": ["2"], "types": ["number"]},
        },
        [{"prompt": DROP, "completion": " 2\n", "answers": ["2"]}],
    ),
]


def made(path: Path, template: str) -> list[Any]:
    with opened(DataSource(path, template=template)) as file:
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    "case", range(len(CASES)), ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)]
)
def test_a_published_layout(tmp_path: Path, case: int, ending: str) -> None:
    name, row, expected = CASES[case]
    path = tmp_path / f"data.{ending}"
    if ending == "jsonl":
        path.write_text(json.dumps(row) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist([row]), path)
    found = made(path, name)
    assert found == expected
    theirs = chatting(CHAT_TEMPLATE)
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(line) + "\n" for line in found))
    read: list[dict[str, Any]] = []
    with Tokenizer.parse(
        theirs.backend_tokenizer.to_str(),
        max_length=64,
        vocab_size=100_000,
        text={"end_tokens": [], **chat_entry(theirs)},
    ) as tokenizer:
        tokenizer.examples(lines, read.append)
    assert ["problem" in one for one in read] == [False] * len(found)


def test_every_template_has_a_case() -> None:
    assert {case[0] for case in CASES} == set(names())


def test_glue_s_tsv(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text('sentence\tlabel\na "warm film \t1\n')
    assert made(path, "sst2") == [compared('a "warm film It was', " great", " terrible", " great")]


def test_squad_s_release_is_one_document(tmp_path: Path) -> None:
    qas = [{"id": "1", "question": "What is hot?", "answers": [{"text": "Tea", "answer_start": 0}]}]
    content = {
        "version": "1.1",
        "data": [{"title": "Tea", "paragraphs": [{"context": "Tea is hot.", "qas": qas}]}],
    }
    for indent in (None, 1):
        path = tmp_path / "train-v1.1.json"
        path.write_text(json.dumps(content, indent=indent))
        assert made(path, "squad") == [
            {"prompt": SQUAD, "completion": " Tea\n", "answers": ["Tea"]}
        ]
    qas[0]["answers"] = []
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="no answer"):
        made(path, "squad")


def test_drop_s_release_is_one_document(tmp_path: Path) -> None:
    none = {"number": "", "date": {"day": "", "month": "", "year": ""}, "spans": []}
    pairs = [
        {
            "question": "How many cats?",
            "answer": {**none, "number": "2"},
            "validated_answers": [{**none, "spans": ["two", "cats"]}, {**none, "number": "2"}],
        },
        {
            "question": "How many cats?",
            "answer": {**none, "date": {"day": "3", "month": "May", "year": "1900"}},
        },
    ]
    path = tmp_path / "drop.json"
    path.write_text(
        json.dumps({"history_1": {"passage": "Two cats, one dog.", "qa_pairs": pairs}}, indent=2)
    )
    assert made(path, "drop") == [
        {"prompt": DROP, "completion": " 2\n", "answers": ["2", "two, cats"]},
        {"prompt": DROP, "completion": " 3 May 1900\n", "answers": ["3 May 1900"]},
    ]


@pytest.mark.parametrize("label", [-1, 2, "other"])
def test_a_label_that_no_choice_has(tmp_path: Path, label: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"sentence": "s", "label": label}) + "\n")
    with pytest.raises(DataError, match=f"the label '{label}'") as caught:
        made(path, "sst2")
    assert caught.value.where == f"{path}:1"


@pytest.mark.parametrize(
    ("name", "found"), [("sst2", "'sentence' is undefined"), ("squad", "without 'answers'")]
)
def test_another_layout(tmp_path: Path, name: str, found: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "t"}\n')
    with pytest.raises(DataError) as caught:
        made(path, name)
    assert caught.value.where == f"{path}:1"
    assert found in caught.value.found


def test_a_template_of_one_s_own_with_columns(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text('prompt: "{{ q }}\\nA:"\ncompletion: " {{ a }}"\n')
    data = tmp_path / "a.csv"
    data.write_text("frage,a\nwas?,das\n")
    with opened(DataSource(data, {"q": "frage"}, own)) as file:
        assert json.loads(file.read_text()) == {"prompt": "was?\nA:", "completion": " das"}


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("- 1", "no mapping"),
        ("a: [", "while parsing"),
        ("prompt: p", "the keys prompt"),
        ("prompt: p\ncompletion: c\nchoice: [a]", "the key 'choice'"),
        ("text: '{{ a'", "unexpected end"),
        ("text: 1", "1 where a text belongs"),
        ("prompt: p\nlabel: l\nchoices: 3", "the choices 3"),
        ("text: t\nlayout: none", "the layout 'none'"),
    ],
)
def test_no_template(tmp_path: Path, content: str, found: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert found in caught.value.found


def test_an_unknown_template_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'sst2'"):
        load("sst-2")


def test_a_template_reaches_nothing_of_python(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("text: \"{{ ''.__class__.__mro__ }}\"\n")
    data = tmp_path / "a.csv"
    data.write_text("a\nb\n")
    with pytest.raises(DataError, match="unsafe"), opened(DataSource(data, template=own)):
        pass
