"""The page of a benchmark, from a measurement that was taken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from research.performance import models, page
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


def test_a_table_of_models(tmp_path: Path) -> None:
    result: dict[str, Any] = json.loads((MEASURED.parent / "kept" / output.JSON).read_text())
    result["results"] = [entry for entry in result["results"] if entry["seq_len"] == 256]
    for entry in result["results"]:
        entry["compiling"] = None
        if entry["keep_mb"] == 2000:
            entry["keep_mb"] = models.ALL_LAYERS_MB
    kept = result["results"][0]
    assert (kept["method"], kept["keep_mb"]) == ("mebp", 0)
    kept["compiling"] = {"seconds": 70.0, "processor_seconds": 61.4, "peak_anonymous_mb": 812.3}
    folder = tmp_path / "models"
    (folder / "gemma3-1b").mkdir(parents=True)
    (folder / "gemma3-1b" / output.JSON).write_text(json.dumps(result))
    path = tmp_path / "page.md"
    path.write_text("<!-- bench-models -->\nold\n<!-- /bench-models -->\n")
    assert models.main([str(path), "--results", str(folder), "--models", "gemma3-1b"]) == 0
    first, second = [line for line in path.read_text().splitlines() if line.startswith("| gemma")]
    assert first.startswith("| gemma3-1b | 6.52M | 4.88 | 9.48 | 564 | 569 | 1.94 | 0.90 | 1.32 |")
    assert first.endswith("| 61 | 812 |")
    assert second.split(" | ")[4] == "0.86" and "1/" in second
    assert models.main([str(path), "--results", str(folder), "--models", "gpt-5"]) == 2
