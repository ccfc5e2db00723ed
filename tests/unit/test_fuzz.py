"""What fuzzing kept: inputs of the targets in Python, which ctest does not run, and files that are read twice."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import python_seeds, readers
from tests.fuzz import run as fuzzing

ROOT = Path(__file__).parents[2]
CORPUS = fuzzing.CORPUS
PYTHON = sorted(path.stem.removeprefix("fuzz_") for path in fuzzing.HERE.glob("fuzz_*.py"))
#: Kinds of files that the session and Python read, and whose inputs are of that kind.
READ_TWICE = {"json": "canonical", "safetensors": "safetensors"}


def target(name: str) -> Callable[[bytes], None]:
    run: Callable[[bytes], None] = importlib.import_module(f"tests.fuzz.fuzz_{name}").run
    return run


@pytest.mark.parametrize("name", PYTHON)
def test_kept_inputs(name: str) -> None:
    kept = sorted((CORPUS / name).iterdir())
    assert kept
    for path in kept:
        target(name)(path.read_bytes())


@pytest.mark.parametrize("name", PYTHON)
def test_seeds_and_what_was_mended(name: str, tmp_path: Path) -> None:
    seeds = python_seeds.seeds(tmp_path)[name]
    for content in [*seeds.values(), *python_seeds.finds().get(name, {}).values()]:
        target(name)(content)
        for end in range(1, len(content), max(1, len(content) // 40)):
            target(name)(content[:end])


@pytest.mark.parametrize("kind", READ_TWICE)
def test_readers_agree(kind: str, tmp_path: Path) -> None:
    """Each input is taken by the session and by Python, or by neither; some are taken."""
    taken = 0
    for path in sorted((CORPUS / READ_TWICE[kind]).iterdir()):
        of_session, of_python = readers.both(kind, path.read_bytes(), tmp_path)
        assert (of_session == "") == (of_python == ""), (path.name, of_session, of_python)
        taken += of_session == ""
    assert taken > 0


def test_the_page_has_the_figures_of_all_targets() -> None:
    page = (ROOT / "docs" / "results" / "trust.md").read_text("utf-8")
    figures = fuzzing.Figures(fuzzing.FIGURES)
    assert fuzzing.table(figures) in page
    targets = {path.stem.removeprefix("fuzz_") for path in fuzzing.HERE.glob("fuzz_*.*")}
    assert set(figures.read()) == targets
    for name, known in figures.read().items():
        assert all((CORPUS / name / find).is_file() for find in known["finds"])
