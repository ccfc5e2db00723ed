"""``data check``: counts, every problem by its place in the source, the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data.test_bundle_tokenizer import bundle as bundle  # the fixture
from zoexport.cli.main import run
from zoexport.session import Bundle
from zoexport.session.data import Tokenizer

CHOICES = ["a", "b"]
GOOD: list[dict[str, Any]] = [
    {"prompt": "It was", "completion": "b", "choices": CHOICES},
    {"prompt": "It was", "completion": "a", "choices": CHOICES},
    {"prompt": "It was", "completion": "b", "choices": CHOICES},
    {"prompt": "It", "completion": "b", "choices": [*CHOICES, "c"]},
]


def check(capfd: pytest.CaptureFixture[str], code: int, *arguments: object) -> dict[str, Any]:
    assert run(["data", "check", *map(str, arguments), "--json"]) == code
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_what_a_file_holds(bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    texts = [{"text": "It was great " * 30}, {"prompt": " ", "completion": "a"}]
    data = write(tmp_path / "a.jsonl", *GOOD, *texts)
    found = check(capfd, 0, data, "--bundle", bundle)
    with Tokenizer.open(bundle) as tokenizer:
        size = {
            text: len(tokenizer.encode(text, special=text not in "abc"))
            for text in ("It was", "It", " ", texts[0]["text"], "a", "b", "c")
        }
    lengths = sorted(
        [
            *[size["It was"] + max(size["a"], size["b"])] * 3,
            size["It"] + max(size["a"], size["b"], size["c"]),
            size[texts[0]["text"]] + 1,  # with the end token, which choices do not have
            size[" "] + size["a"] + 1,
        ]
    )
    assert found["tokens"] == {
        "least": lengths[0],
        "median": lengths[2],
        "p95": lengths[5],
        "longest": lengths[5],
    }
    del found["tokens"]
    assert found == {
        "examples": 6,
        "usable": True,
        "shapes": {"choices": 4, "text": 1, "completion": 1},
        "max_length": 24,
        "labels": {"b": 3, "a": 2},
        "choices": {"2": 3, "3": 1},
        "right": {"0": 1, "1": 3},
        "duplicates": 1,
        "empty": 1,
        "rows": None,
        "shortened": 1,
        "shortened_at": [f"{data}:5"],
        "joined": 4,
        "merged": 0,
        "last_turn_only": 0,
        "unused": [],
        "problem_count": 0,
        "problems": [],
    }
    with Bundle.open(bundle).examples(data) as (_, counts):
        assert counts == {"examples": 6, "shortened": 1}


def test_rows_of_packed_examples(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of more lines than one block has, some of which cannot be used."""
    texts = [{"text": "It was great " * (1 + number % 9)} for number in range(300)]
    data = write(tmp_path / "a.jsonl", *texts)
    found = check(capfd, 0, data, "--bundle", bundle, "--pack")
    assert (found["examples"], found["shortened"]) == (300, 0)
    with Bundle.open(bundle).examples(data, pack=True) as (dataset, counts):
        assert found["rows"] == len(dataset) == counts["examples"]
    assert found["rows"] != found["examples"]
    write(data, {"text": 7}, *texts, {"label": 1})
    faulty = check(capfd, 1, data, "--bundle", bundle, "--pack")
    assert (faulty["rows"], faulty["problem_count"]) == (found["rows"], 2)


def test_every_problem_is_listed_by_its_place(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "a.csv"
    data.write_text('sentence,label\n"a\nb",1\nc,2\nd,0\ne,-1\n')
    found = check(capfd, 1, data, "--bundle", bundle, "--template", "sst2")
    assert [one["where"] for one in found["problems"]] == [f"{data}:4", f"{data}:6"]
    assert (found["examples"], found["usable"]) == (2, False)

    data = write(tmp_path / "a.jsonl", GOOD[0], {"text": ""}, {"text": 3}, GOOD[1], {"x": "y"})
    with data.open("a") as file:
        file.write("\nnone\n")
    found = check(capfd, 1, data, "--bundle", bundle, "--limit", 2)
    assert [one["where"] for one in found["problems"]] == [f"{data}:2", f"{data}:3"]
    assert (found["problem_count"], found["examples"], found["empty"]) == (4, 2, 1)
    assert run(["data", "check", str(data), "--bundle", str(bundle), "--limit", "3"]) == 1
    out = capfd.readouterr().out
    assert f"{data}:5: found" in out
    assert out.endswith("and 1 more\n")


def test_choices_are_asked_for(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "a.jsonl", {"text": "It was great"}, *GOOD)
    assert check(capfd, 0, data, "--bundle", bundle)["examples"] == 5
    found = check(capfd, 1, data, "--bundle", bundle, "--loss", "choices")
    assert [one["where"] for one in found["problems"]] == [f"{data}:1"]


def test_pairs_are_asked_for_and_counted(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pairs = [
        {"prompt": "It was", "chosen": "b", "rejected": "great, and more than that"},
        {"prompt": "It was", "chosen": "b", "rejected": " "},
    ]
    data = write(tmp_path / "a.jsonl", *pairs, {"text": "It was great"}, GOOD[3])
    found = check(capfd, 0, data, "--bundle", bundle)
    assert found["shapes"] == {"preference": 2, "text": 1, "choices": 1}
    assert (found["empty"], found["labels"]) == (1, {"b": 1})
    with Tokenizer.open(bundle) as tokenizer:
        longest = len(tokenizer.encode("It was")) + len(
            tokenizer.encode(pairs[0]["rejected"], special=False)
        )
    assert found["tokens"]["longest"] == longest + 1  # the end token
    found = check(capfd, 1, data, "--bundle", bundle, "--loss", "dpo")
    assert [one["where"] for one in found["problems"]] == [f"{data}:3", f"{data}:4"]
    assert found["shapes"] == {"preference": 2}
    table = tmp_path / "a.csv"
    table.write_text("question,good,bad,n\nIt was,b,c,1\nIt was,4,5,2\n")
    columns = "prompt=question,chosen=good,rejected=bad"
    found = check(capfd, 0, table, "--bundle", bundle, "--columns", columns, "--loss", "orpo")
    assert found["shapes"] == {"preference": 2}


def test_many_labels_are_no_classes(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [{"prompt": "p", "completion": f"a{i}"} for i in range(300)]
    found = check(capfd, 0, write(tmp_path / "a.jsonl", *lines), "--bundle", bundle)
    assert (found["labels"], found["shapes"]) == (None, {"completion": 300})


def test_a_file_that_is_not_there(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = check(capfd, 1, tmp_path / "none.jsonl", "--bundle", bundle)
    assert found["error"]["found"] == "No such file or directory"
