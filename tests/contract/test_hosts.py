"""docs/hosts.md names every Kotlin file of the app, and what it says to be tested needs no Android."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
APP = ROOT / "android_app"
FILES = sorted(path.relative_to(APP).as_posix() for path in APP.rglob("src/**/*.kt"))
#: Whose packages are on the class path of tests/kotlin.
MAY_IMPORT = ("java.", "kotlin.", "kotlinx.coroutines.", "com.google.gson.", "zoexport.")


def listed() -> dict[str, bool]:
    """Files of the table, and whether they are said to be compiled and run."""
    rows = re.findall(r"^\| `([^`*]+\.kt)` \| (yes|no)", (ROOT / "docs/hosts.md").read_text(), re.M)
    return {name: said == "yes" for name, said in rows}


def test_every_file_is_listed() -> None:
    assert sorted(listed()) == FILES
    assert len(FILES) > 15


@pytest.mark.parametrize("name", FILES)
def test_what_is_compiled_here_needs_no_framework(name: str) -> None:
    """And what lies elsewhere than in the compiled folders is not said to be."""
    compiled = "/zoexport/session/" in name or "/zoexport/app/training/" in name
    assert listed()[name] is compiled
    imported = re.findall(r"^import (\S+)", (APP / name).read_text(), re.M)
    foreign = [entry for entry in imported if not entry.startswith(MAY_IMPORT)]
    assert bool(foreign) is not compiled, foreign
