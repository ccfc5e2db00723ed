"""Rules of the C++ runtime that no compiler here checks: one-way includes, and names that Clang cannot link twice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[2] / "runtime_ops"
SOURCES = sorted(path for path in RUNTIME.rglob("*") if path.suffix in {".h", ".cpp"})

#: Folders of session/, each with those that it may include beside itself and what lies in session/ itself.
SESSION: dict[str, set[str]] = {
    "storage": set(),
    "manifest": {"storage"},
    "data": {"storage"},
    "text": {"storage", "manifest"},
    "chat": {"manifest", "text"},
    "examples": {"storage", "manifest", "data", "text", "chat"},
    "state": {"storage", "manifest"},
    "adapters": {"storage", "manifest", "text"},
    "programs": {"storage", "manifest", "data", "state"},
    "generate": {"storage", "manifest", "text", "state", "programs"},
    "train": {"storage", "manifest", "data", "state", "programs"},
}
#: Of session/ itself: what the folders may include; session.h is above them.
BASE = {"decimal.h", "losses.h", "memory.h", "options.h", "parts.h", "result.h"}
#: What is beside the session, each with what of it it may include: a job uses it through the C ABI, as any host does.
BESIDE = {
    "kernels": set(),
    "rng": set(),
    "engines": {"manifest", "storage"},
    "job": {"storage"},
}


def includes(source: str) -> list[str]:
    return re.findall(r'^#include "session/([^"]+)"', source, re.MULTILINE)


def broken_rules(name: str, found: Iterable[str]) -> list[str]:
    """Which includes of ``session/`` a file of the runtime may not have."""
    parts = name.split("/")
    if parts[0] in BESIDE:
        allowed = BESIDE[parts[0]]
    elif parts[0] == "session" and len(parts) > 2:
        allowed = SESSION[parts[1]] | {parts[1]}
    else:
        return []
    return [one for one in found if one not in BASE and one.split("/")[0] not in allowed]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(RUNTIME)))
def test_includes_go_one_way(path: Path) -> None:
    name = path.relative_to(RUNTIME).as_posix()
    assert broken_rules(name, includes(path.read_text("utf-8"))) == []


def test_every_folder_of_the_session_has_a_rule() -> None:
    folders = {path.name for path in (RUNTIME / "session").iterdir() if path.is_dir()}
    assert folders == set(SESSION)


def test_functions_of_each_width_have_names_of_their_own() -> None:
    pattern = re.compile(r"^ZO_EACH_WIDTH\s+[\w:*& ]*?(\w+)\(", re.MULTILINE)
    found = [name for path in SOURCES for name in pattern.findall(path.read_text("utf-8"))]
    assert len(found) >= 10
    assert [name for name, count in Counter(found).items() if count > 1] == []
