"""CSV, Parquet, text files and Hub data sets: the same examples as JSON Lines, and messages that name the source."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.data.test_bundle_tokenizer import bundle as bundle  # the fixture
from zoexport.core.errors import ConfigError, DataError
from zoexport.data import readers
from zoexport.data.columns import parse_columns
from zoexport.data.sources import DataSource, opened, splits
from zoexport.session import Bundle

ROWS: list[dict[str, Any]] = [
    {"prompt": "It was", "completion": " great"},
    {"prompt": 'The film,\nquoted: "it" was', "completion": " b"},
    {"prompt": "a", "completion": "0"},
]


def made(source: DataSource) -> list[Any]:
    with opened(source) as path:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def refused(source: DataSource, kind: type[Exception] = DataError) -> Any:
    with pytest.raises(kind) as caught, opened(source):
        pass
    return caught.value


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]], group: int = 2) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)
    return path


def test_json_lines_are_the_file_itself(tmp_path: Path) -> None:
    for name in ("data.jsonl", "data.json", "data"):
        with opened(DataSource(tmp_path / name)) as path:
            assert path == tmp_path / name


def test_csv_and_parquet_hold_what_json_lines_hold(tmp_path: Path, bundle: Path) -> None:
    lines = tmp_path / "data.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    digests = []
    for source in (
        lines,
        write_csv(tmp_path / "data.csv", ROWS),
        write_parquet(tmp_path / "data.parquet", ROWS),
    ):
        with (
            opened(DataSource(source)) as path,
            Bundle.open(bundle).examples(path) as (dataset, counts),
        ):
            assert counts["examples"] == 3
            digests.append(dataset.digest())
    assert len(set(digests)) == 1


def test_a_tsv_keeps_quotation_marks(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('sentence\tlabel\n"open\t1\n')
    found = made(DataSource(tmp_path / "a.tsv", {"text": "sentence"}))
    assert found == [{"text": '"open'}]


def test_columns_are_mapped(tmp_path: Path) -> None:
    rows = [
        {"q": "2+2=", "wrong": "5", "right": "4", "label": 1, "user": "u"},
        {"q": "1+1=", "wrong": "3", "right": "2", "label": 1, "user": "v"},
    ]
    columns = parse_columns("prompt=q, completion=label, choices=wrong|right, user=user")
    expected = [
        {"prompt": "2+2=", "completion": "4", "choices": ["5", "4"], "user": "u"},
        {"prompt": "1+1=", "completion": "2", "choices": ["3", "2"], "user": "v"},
    ]
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in (
        write_csv(tmp_path / "rows.csv", rows),
        write_parquet(tmp_path / "rows.parquet", rows),
        lines,
    ):
        assert made(DataSource(path, columns)) == expected


def test_lists_are_columns_of_parquet_or_json_in_csv(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "completion": " b", "choices": [" a", " b"]}]
    assert made(DataSource(write_parquet(tmp_path / "a.parquet", rows))) == rows
    spelled = [{**rows[0], "choices": json.dumps(rows[0]["choices"])}]
    assert made(DataSource(write_csv(tmp_path / "a.csv", spelled))) == rows


@pytest.mark.parametrize("columns", ["prompt", "prompt=", "a=b,a=c", "=b"])
def test_columns_that_are_no_assignments(columns: str) -> None:
    with pytest.raises(ConfigError, match="columns="):
        parse_columns(columns)


def test_a_missing_column_names_the_row_and_the_nearest(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [{"question": "q", "answer": "a"}])
    error = refused(DataSource(path, {"prompt": "questions"}))
    assert error.where == f"{path}:2"
    assert "'question'" in error.fix


def test_the_session_s_message_names_the_row_of_the_source(tmp_path: Path, bundle: Path) -> None:
    # The second record of the CSV has a line break, so that lines and records differ.
    rows = [*ROWS, {"prompt": "p", "completion": ""}]
    for path, where in (
        (write_csv(tmp_path / "a.csv", rows), "a.csv:6"),
        (write_parquet(tmp_path / "a.parquet", rows), "a.parquet, row 4"),
    ):
        source = DataSource(path)
        with pytest.raises(DataError, match="empty 'completion'") as caught:  # noqa: SIM117
            with opened(source) as file, Bundle.open(bundle).examples(file):
                pass
        assert caught.value.where == str(tmp_path / where)


def test_a_folder_of_texts(tmp_path: Path, bundle: Path) -> None:
    (tmp_path / "texts" / "more").mkdir(parents=True)
    (tmp_path / "texts" / "b.txt").write_text("It was great")
    (tmp_path / "texts" / "more" / "a.txt").write_bytes(b"\xef\xbb\xbfIt\nwas")
    (tmp_path / "texts" / "notes.md").write_text("none")
    source = DataSource(tmp_path / "texts")
    assert made(source) == [{"text": "It was great"}, {"text": "It\nwas"}]
    (tmp_path / "texts" / "c.txt").write_text("")
    with (
        pytest.raises(DataError) as caught,
        opened(source) as file,
        Bundle.open(bundle).examples(file),
    ):
        pass
    assert caught.value.where == str(tmp_path / "texts" / "c.txt")
    (tmp_path / "texts" / "b.txt").write_bytes(b"\xff")
    assert str(tmp_path / "texts" / "b.txt") in refused(source).where


def test_a_folder_without_texts(tmp_path: Path) -> None:
    assert "without .txt" in refused(DataSource(tmp_path)).found


@pytest.mark.parametrize(
    ("content", "line", "found"),
    [
        (b"text\na,b\n", ":2", "2 cells"),
        (b'text\n"a\n', "", "unexpected end"),
        (b"text,text\na,b\n", ":1", "column names"),
        (b"text\n\xff\n", "", "not UTF-8"),
        (b"text\n", "", "no examples"),
        (b"", "", "no examples"),
    ],
)
def test_damaged_csv(tmp_path: Path, content: bytes, line: str, found: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    error = refused(DataSource(path))
    assert f"{path}{line}" in error.where
    assert found in error.found


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    assert refused(DataSource(tmp_path / name)).found == "no such file or directory"


def test_damaged_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    assert refused(DataSource(path)).where == f"data {path}"


def test_values_without_a_form_in_json(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"text": "t", "image": b"\x00"}])
    assert refused(DataSource(path)).where == f"{path}, row 1"
    assert made(DataSource(path, {"text": "text"})) == [{"text": "t"}]


def test_a_missing_library_is_one_message(tmp_path: Path, monkeypatch: Any) -> None:
    for source, library in (
        (str(write_parquet(tmp_path / "a.parquet", ROWS)), "pyarrow"),
        ("hf:owner/name:train", "datasets"),
    ):
        monkeypatch.setitem(sys.modules, library, None)
        error = refused(DataSource(source), ConfigError)
        assert library in error.found
        assert "zoexport[data]" in error.fix


def test_a_hub_data_set(tmp_path: Path) -> None:
    """The library takes a folder of the same name for the hub's; in a process of its own, without torch."""
    (tmp_path / "owner" / "name").mkdir(parents=True)
    write_parquet(tmp_path / "owner" / "name" / "train.parquet", ROWS)
    write_parquet(tmp_path / "owner" / "name" / "test.parquet", ROWS[:1])
    probe = (
        "import sys\n"
        "from zoexport.data.sources import DataSource, opened\n"
        "with opened(DataSource('hf:owner/name:train')) as path:\n"
        "    print(path.read_text())\n"
        "assert 'torch' not in sys.modules\n"
        "try:\n"
        "    with opened(DataSource('hf:owner/name')): pass\n"
        "except Exception as error:\n"
        "    print(error.fix)\n"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", probe],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    *lines, fix = [line for line in done.stdout.splitlines() if line]
    assert [json.loads(line) for line in lines] == ROWS
    assert fix in ("Name it, such as hf:owner/name:train.", "Name it, such as hf:owner/name:test.")


@pytest.mark.parametrize("name", ["hf:", "hf:a:b:c:d", "hf:a::b"])
def test_no_name_of_a_data_set(name: str) -> None:
    assert refused(DataSource(name), ConfigError).where == f"data {name}"


def test_a_full_disk_is_one_message(tmp_path: Path) -> None:
    source = DataSource(write_csv(tmp_path / "a.csv", [{"text": "some text"}] * 2000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(ConfigError, match="another folder in TMPDIR"), opened(source):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with opened(DataSource(write_csv(tmp_path / "a.csv", ROWS))) as path:
        assert path.parent.parent == tmp_path / "temporary"
    refused(DataSource(write_csv(tmp_path / "b.csv", ROWS), {"text": "none"}))
    assert not list((tmp_path / "temporary").iterdir())


TABLE = "text,label\ngood film,pos\nb\u00e4d film,neg\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_encodings(tmp_path: Path, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    rows = [{"text": "good film", "label": "pos"}, {"text": "b\u00e4d film", "label": "neg"}]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    ending = ".gz" if pack is gzip.compress else ""
    for name, text in (
        ("a.csv", TABLE),
        ("a.jsonl", lines),
        ("a.json", json.dumps(rows, indent=1, ensure_ascii=False)),
    ):
        path = tmp_path / f"{name}{ending}"
        path.write_bytes(pack(text.encode(encoding)))
        found = [json.loads(line) for line in content(path).splitlines()]
        assert found == rows, name


def content(path: Path) -> str:
    with opened(DataSource(path)) as file:
        return file.read_text("utf-8-sig")


@pytest.mark.parametrize(("name", "text"), [("a.csv", TABLE), ("a.txt", "b\u00e4d film")])
def test_another_encoding_is_named_with_what_converts_it(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    error = refused(DataSource(tmp_path / name if name.endswith(".csv") else tmp_path))
    assert "iconv -f LATIN1 -t UTF-8" in error.fix


def test_a_file_that_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(TABLE.encode() * 99)[:-9])
    assert "ended before the end-of-stream marker" in refused(DataSource(path)).found


def test_a_list_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"text": "a"},\n 3]')
    error = refused(DataSource(path))
    assert error.where == f"{path}, entry 1" and error.found == "JSON that is no object: 3"


def test_a_column_of_classes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(TABLE)
    rows = list(csv.DictReader(io.StringIO(TABLE)))
    expected = [
        {"prompt": row["text"], "completion": f" {row['label']}", "choices": [" neg", " pos"]}
        for row in rows
    ]
    frame = pandas.DataFrame(rows)
    for place in (path, rows, iter(rows), frame):
        assert made(DataSource(place, label_column="label")) == expected
    # Numbers of classes, and a prompt that has to be named.
    numbered = [{"id": 1, "review": "good", "stars": 1}, {"id": 2, "review": "bad", "stars": "0"}]
    with pytest.raises(DataError, match="the columns id, review beside 'stars'"):
        made(DataSource(numbered, label_column="stars"))
    source = DataSource(numbered, {"prompt": "review"}, None, "stars", ["no", "yes"])
    assert [one["completion"] for one in made(source)] == [" yes", " no"]
    for label, found in (("maybe", "the class 'maybe'"), (7, "the label 7"), (None, "nothing in")):
        with pytest.raises(DataError, match=found):
            made(DataSource([{"text": "a", "l": label}], None, None, "l", ["no", "yes"]))
    with pytest.raises(ConfigError, match="no label column"):
        made(DataSource(rows, choices=["neg"]))
    with pytest.raises(DataError, match="more than 100 different values"):
        made(DataSource([{"text": "a", "l": n} for n in range(101)], label_column="l"))
    named = datasets.ClassLabel(names=["bad", "good"])
    features = datasets.Features({"text": datasets.Value("string"), "label": named})
    given = datasets.Dataset.from_dict({"text": ["a"], "label": [1]}, features)
    assert made(DataSource(given, label_column="label"))[0]["completion"] == " good"


# ---- tables and data sets -----------------------------------------------------------------------------------------


class Polars:
    """Stand-in for ``polars.DataFrame``, whose ``to_dict`` returns columns."""

    columns = ("prompt", "completion", "note")
    shape = (2, 3)

    def to_dict(self, as_series: bool = True) -> dict[str, Any]:
        raise AssertionError("rows are read with iter_rows")

    def iter_rows(self, *, named: bool = False) -> Iterator[dict[str, Any]]:
        assert named
        yield {"prompt": "a", "completion": "b", "note": None}
        yield {"prompt": "c", "completion": "d", "note": None}


def test_rows_of_polars() -> None:
    expected = [{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"}]
    assert made(DataSource(Polars())) == expected


def test_rows_of_pandas_have_no_missing_values_and_no_arrays() -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    frame = pandas.DataFrame(
        {
            "messages": pandas.Series([numpy.array(turns, dtype=object), None], dtype=object),
            "prompt": pandas.array([None, "c"], dtype="string"),
            "completion": [float("nan"), 4],
            "count": pandas.array([1, None], dtype="Int64"),
        }
    )
    assert [row for _, row in readers.rows(frame)] == [
        {"messages": turns, "count": 1},
        {"prompt": "c", "completion": 4},
    ]


def dataset(text: str) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": [text]})


def texts(data: Any) -> list[str]:
    return [one["text"] for one in made(data if isinstance(data, DataSource) else DataSource(data))]


def test_splits_of_a_dataset_dict() -> None:
    parts = {name: dataset(name) for name in ("train", "test", "validation")}
    data, eval_data = splits(datasets.DatasetDict(parts), None)
    assert (texts(data), texts(eval_data)) == (["train"], ["validation"])
    del parts["validation"]
    data, eval_data = splits(DataSource(datasets.DatasetDict(parts), {"text": "text"}), None)
    assert (texts(data), texts(eval_data)) == (["train"], ["test"])
    given = pandas.DataFrame({"text": ["mine"]})
    assert splits(datasets.DatasetDict(parts), given)[1] is given
    assert splits({"train": [{"text": "a"}]}, None)[1] is None
    assert splits("train.jsonl", None) == ("train.jsonl", None)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (datasets.DatasetDict(test=dataset("a")), "with the keys test; expected a split 'train'"),
        ({"prompt": ["a"], "completion": ["b"]}, "prompt, completion; expected a split 'train'"),
        ({}, "the keys none"),
    ],
)
def test_mappings_without_a_split_to_train_on(data: Any, found: str) -> None:
    with pytest.raises(DataError, match=found):
        splits(data, None)


def test_a_mapping_where_one_split_is_read() -> None:
    with pytest.raises(DataError, match=r"keys train, test; expected the rows of one split"):
        made(DataSource({"train": [{"text": "a"}], "test": [{"text": "b"}]}))
