"""Every method on every target: what cannot run is a Problem that names the feature, and the pages agree."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.matrix import CELLS, METHODS, TARGETS, generating_table, problem_of, table
from zoexport.core.features import Feature
from zoexport.methods import methods
from zoexport.targets import targets

ROOT = Path(__file__).parents[2]
PAGES = [("targets.md", table), ("results/generation.md", generating_table)]
SOURCES = (".py", ".h", ".cpp")
#: The default method, and what is measured by default.
NAMING = {"plan.py", "bench"}


def test_every_method_and_target_is_in_the_table() -> None:
    assert set(METHODS) == set(methods.names())
    assert set(TARGETS) == set(targets.names())


@pytest.mark.parametrize(("method", "target", "settings"), CELLS)
def test_a_cell_runs_or_names_what_is_missing(
    method: str, target: str, settings: dict[str, str]
) -> None:
    found = problem_of(method, target, settings)
    assert found is None or f"target {target} has no" in found
    assert found is None or any(feature.value in found for feature in Feature)


@pytest.mark.parametrize(
    "place",
    [
        "runtime_ops/session",
        *(
            f"exporter/zoexport/{name}"
            for name in (
                "core",
                "compiler",
                "run",
                "targets",
                "tools",
                "methods/steps.py",
                "trained",
            )
        ),
    ],
)
def test_nothing_there_names_a_method(place: str) -> None:
    pattern = re.compile(rf"\b({'|'.join(methods.names())})\b")
    inside = [ROOT / place, *sorted((ROOT / place).rglob("*"))]
    files = [path for path in inside if path.suffix in SOURCES and not NAMING & set(path.parts)]
    assert files
    for path in files:
        assert not pattern.findall(path.read_text("utf-8")), path


@pytest.mark.parametrize(("name", "made"), PAGES)
def test_the_page_has_this_table(name: str, made: Callable[[], str]) -> None:
    """Renew them by python -m tests.support.matrix."""
    begin, end = "<!-- methods x targets -->\n", "\n<!-- end -->"
    page = (ROOT / "docs" / name).read_text("utf-8")
    assert page.partition(begin)[2].partition(end)[0] == made()
