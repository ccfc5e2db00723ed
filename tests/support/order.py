"""Which test files come first: those that the newest commits touch.

A file counts as touched by the newest commit that changed it, or anything of ours that it imports or watches. Files of
one commit come in an order that the commit's name draws, so that no file is always the last where time runs out.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import subprocess
from collections.abc import Iterable
from pathlib import Path

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


def newest_first(files: Iterable[Path]) -> list[Path]:
    """The test files in that order; as they are where there is no git or no history."""
    commits = _commits()
    ages: dict[Path, int] = {}
    for age, (_, changed) in enumerate(commits):
        for path in changed:
            ages.setdefault(path, age)
    head = commits[0][0] if commits else ""

    def rank(path: Path) -> tuple[int, str]:
        touched = [ages.get(one, len(commits)) for one in (path, *_imported(path))]
        watched = _WATCHED.get(path.name, _WATCHED.get(path.parent.name))
        if watched is not None:
            touched += [age for one, age in ages.items() if one.is_relative_to(ROOT / watched)]
        return min(touched), hashlib.sha256(f"{head} {path.relative_to(ROOT)}".encode()).hexdigest()

    return sorted(files, key=rank)


def _commits() -> list[tuple[str, list[Path]]]:
    """Name and changed files of the last five hundred commits, the newest first."""
    line = ["git", "log", "-n", "500", "--format=commit %H", "--name-only"]
    try:
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    commits: list[tuple[str, list[Path]]] = []
    for text in done.stdout.splitlines():
        if text.startswith("commit "):
            commits.append((text.removeprefix("commit "), []))
        elif text:
            commits[-1][1].append(ROOT / text)
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
