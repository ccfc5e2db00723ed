"""Order of the test files of the second tier, of which CI has no time for all.

First come the files that one of the newest commits touches: it changed the file, a module of ours that the file
imports, or sources that it watches. The others follow as a ring of fixed order; the ring's beginning moves on with the
number of commits, so that a few landings reach every file. The first test of each file moves on too, as there may be no
time for the last tests of a long file.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
ROOT = Path(__file__).parents[2]
_PACKAGES = {"zoexport": ROOT / "exporter" / "zoexport", "tests": ROOT / "tests"}
_PACKAGES["research"] = ROOT / "research"
_WATCHED = {
    "kotlin": "android_app",
    "swift": "ios_app",
    "aarch64": "runtime_ops",
    "test_sanitized_cpp.py": "runtime_ops",
    "test_wheel.py": "runtime_ops",
}
"""Folder or file of tests -> the folder of sources that they are of, which no Python imports."""


NEWEST = 20
"""Number of commits whose files come first: about two landings."""
STEP = 0.0309
"""Part of the ring by which one commit moves its beginning; a landing of eight commits moves it by a quarter."""


def newest_first(files: Iterable[Path]) -> list[Path]:
    """Return the test files in the order of the second tier; without git, in an order by the hash of their names."""
    ages: dict[Path, int] = {}
    for number, changed in enumerate(_commits()):
        for path in changed:
            ages.setdefault(path, number)
    ring = sorted(files, key=_drawn)
    begin = round(len(ring) * (_count() * STEP % 1))
    order = {path: number for number, path in enumerate([*ring[begin:], *ring[:begin]])}

    def age(path: Path) -> int:
        touched = [ages.get(one, NEWEST) for one in (path, *_imported(path))]
        watched = _WATCHED.get(path.name, _WATCHED.get(path.parent.name))
        if watched is not None:
            touched += [n for one, n in ages.items() if one.is_relative_to(ROOT / watched)]
        return min(touched)

    return sorted(order, key=lambda path: (age(path), order[path]))


def turned(items: Sequence[Item]) -> list[Item]:
    """Return the tests of a file, beginning elsewhere after each commit, and elsewhere than the ring of files does."""
    begin = round(len(items) * (_count() * 0.618 % 1))
    return [*items[begin:], *items[:begin]]


def _drawn(path: Path) -> str:
    """Return a hash of the file's name, by which files of one folder are spread over the ring."""
    return hashlib.sha256(str(path.relative_to(ROOT)).encode()).hexdigest()


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


@functools.cache
def _count() -> int:
    """Return the number of commits, 0 without git."""
    return int(_git("rev-list", "--count", "HEAD") or 0)


def _commits() -> list[list[Path]]:
    """Return the changed files of the newest commits, the newest commit first."""
    commits: list[list[Path]] = []
    for text in _git("log", "-n", str(NEWEST), "--format=commit %H", "--name-only").splitlines():
        if text.startswith("commit "):
            commits.append([])
        elif text:
            commits[-1].append(ROOT / text)
    return commits


@functools.cache
def _imported(path: Path) -> frozenset[Path]:
    """Modules of ours that a file imports itself; of the tests' own, those that they import too."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in (node.module, *(f"{node.module}.{one.name}" for one in node.names)):
                found |= _file_of(name)
        elif isinstance(node, ast.Import):
            for one in node.names:
                found |= _file_of(one.name)
    for module in sorted(found - {path}):
        if module.is_relative_to(_PACKAGES["tests"]):
            found |= _imported(module)
    return frozenset(found)


def _file_of(module: str) -> set[Path]:
    package, _, rest = module.partition(".")
    if package not in _PACKAGES:
        return set()
    place = _PACKAGES[package].joinpath(*rest.split(".")) if rest else _PACKAGES[package]
    return {path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()}
