"""``train``, ``eval`` and ``generate`` on a CSV: what they do on the same examples as JSON Lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.unit.cli.test_runs import data as data  # the fixture
from zoexport.cli.main import run


@pytest.fixture
def table(data: Path, tmp_path: Path) -> Path:
    """The fixture's examples in other columns."""
    path = tmp_path / "data.csv"
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    lines = [
        f"{row['prompt']},{row['choices'].index(row['completion'])}, good, bad" for row in rows
    ]
    path.write_text("\n".join(["q,label,first,second", *lines]) + "\n")
    return path


COLUMNS = ("--columns", "prompt=q,completion=label,choices=first|second")


def call(capfd: pytest.CaptureFixture[str], code: int, *arguments: object) -> Any:
    assert run([*map(str, arguments), "--json"]) == code
    return json.loads(capfd.readouterr().out)


def test_a_run_goes_on_with_the_same_examples_from_elsewhere(
    compiler: Compiler, data: Path, table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle, lines, state = compiler.bundle("llama_tied", "prge"), data, tmp_path / "state"
    whole = call(
        capfd, 0, "train", bundle, "--data", lines, "--state", tmp_path / "whole", "--steps", 2
    )
    call(capfd, 0, "train", bundle, "--data", lines, "--state", state, "--steps", 1)
    end = ("--eval-data", table, "--eval-every", 1)
    found = call(
        *(capfd, 0, "train", bundle, "--data", table, *COLUMNS, "--state", state, "--steps", 2)
    )
    assert found["losses"] == whole["losses"]
    # Held-out examples are read with the same columns.
    other = tmp_path / "other"
    found = call(
        *(capfd, 0, "train", bundle, "--data", table, *COLUMNS, "--state", other, "--steps", 1),
        *end,
    )
    assert len(found["evaluations"]) == 2
    assert call(capfd, 0, "eval", bundle, "--data", table, *COLUMNS) == call(
        capfd, 0, "eval", bundle, "--data", lines
    )


def test_a_row_that_cannot_be_used_leaves_no_state(
    compiler: Compiler, table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with table.open("a") as file:
        file.write("q,7, good, bad\n")
    found = call(
        *(capfd, 1, "train", compiler.bundle("llama_tied", "prge"), "--data", table, *COLUMNS),
        *("--state", tmp_path / "state", "--steps", 1),
    )
    assert found["error"]["where"] == f"{table}:8"
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["eval"],
        ["train", "--state", "s", "--steps", "1"],
        ["generate"],
        ["device", "train", "--steps", "1"],
        ["federate", "simulate", "--clients", "2", "--sample", "1", "--rounds", "1"],
        ["federate", "client", "--state", "s", "--server", "h:1", "--ca", "c", "--key", "k"],
    ],
    ids=" ".join,
)
def test_every_verb_with_data_reads_other_sources(
    compiler: Compiler, table: Path, capfd: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    bundle = compiler.bundle("llama_tied", "prge")
    found = call(
        capfd, 1, *arguments, bundle, "--data", table, "--columns", "prompt=q,completion=absent"
    )
    assert found["error"]["where"] == f"{table}:2"


def test_columns_need_data(compiler: Compiler, capfd: pytest.CaptureFixture[str]) -> None:
    found = call(
        *(
            capfd,
            2,
            "generate",
            compiler.bundle("llama_tied", "prge"),
            "--prompt",
            "a",
            "--columns",
            "a=b",
        )
    )
    assert found["error"]["found"] == "no --data"
