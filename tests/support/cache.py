"""A cache of what tests compile: each thing once, for every worker, tier and run over the same sources.

An entry lies in ``build/test-cache/<sources>/<key>``: ``sources`` is the digest of all that compiling depends on,
``key`` that of what is compiled. Entries are shared, so a test that alters a bundle alters a copy.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from filelock import FileLock

from zoexport.core.files import sha256

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "test-cache"
_SOURCES = ("exporter/zoexport", "graphs", "tests/support")
_KEPT = 3
"""Digests of sources whose entries stay, so that going back to a branch finds its own."""


def cached(key: Mapping[str, Any], make: Callable[[Path], Any]) -> tuple[Path, Any]:
    """The folder of ``key`` and what ``make(folder)`` returned (as JSON) when it filled that.

    Files among the key's values count by their content. ``make`` runs in one process at a time, and again if it failed.
    """
    folder = _current() / _digest(json.dumps(key, sort_keys=True, default=_of_path).encode())
    done = folder / "made.json"
    with FileLock(folder.with_suffix(".lock")):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            result = make(folder)
            done.write_text(json.dumps({"key": key, "result": result}, default=str))
    return folder, json.loads(done.read_text())["result"]


@functools.cache
def _current() -> Path:
    """The folder of these sources; those used longest ago go."""
    found = hashlib.sha256()
    for place in _SOURCES:
        for path in sorted((ROOT / place).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found.update(f"{path.relative_to(ROOT)} {sha256(path)}\n".encode())
    for package in sorted({f"{one.name} {one.version}" for one in distributions()}):
        found.update(f"{package}\n".encode())
    folder = CACHE / found.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    others = sorted(CACHE.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in others[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def _of_path(value: object) -> str:
    return sha256(value) if isinstance(value, Path) else str(value)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]
