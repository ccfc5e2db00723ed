"""The page of a benchmark, from a measurement that was taken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from research.performance import page
from zoexport.bench import output

MEASURED = Path(__file__).parents[2] / "research" / "performance" / "results" / "mebp"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copied = tmp_path / "bench"
    shutil.copytree(MEASURED, copied)
    return copied


def test_a_page_is_renewed_between_its_marks(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n")
    page.update(path, folder)
    first = path.read_text()
    assert first.startswith("before\n") and first.endswith("after\n") and "old" not in first
    result: dict[str, Any] = json.loads((folder / output.JSON).read_text())
    assert "](bench/bench.png)" in first and "| mebp | int4/" in first
    assert output.markdown(result) in first
    page.update(path, folder)
    assert path.read_text() == first
    path.write_text("no marks\n")
    assert page.main([str(path), str(folder)]) == 2
    assert path.read_text() == "no marks\n"


def test_a_page_has_marks_for_each_measurement(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    marks = "<!-- bench -->\nkept\n<!-- /bench -->\n<!-- other -->\nold\n<!-- /other -->\n"
    path.write_text(marks)
    assert page.main([str(path), str(folder), "other"]) == 0
    text = path.read_text()
    assert "kept" in text and "old" not in text and "| mezo by layers |" in text
    assert page.main([str(path), str(folder), "third"]) == 2
