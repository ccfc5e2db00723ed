"""Results that a long report keeps while it is made: one JSON file a cell, under what decides its content."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zoexport.core.files import atomic_file

Result = dict[str, Any]


def name_of(key: Mapping[str, Any]) -> str:
    """A short name that stands for all of a key."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]


class Cells:
    """Cells in a folder; what an earlier call made is not made again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def kept(self, kind: str, key: Mapping[str, Any]) -> Result | None:
        """A cell's result, where there is one."""
        with contextlib.suppress(OSError, ValueError):  # none yet, or damaged
            return json.loads(self._path(kind, key).read_text(encoding="utf-8"))
        return None

    def get(self, kind: str, key: Mapping[str, Any], make: Callable[[], Result]) -> Result:
        """A cell's result, made now where there is none.

        Args:
            kind: what the cell is, for its file's name.
            key: everything that decides the result, as JSON.
        """
        found = self.kept(kind, key)
        if found is None:
            found = make()
            with atomic_file(self._path(kind, key)) as temporary:
                temporary.write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
        return found

    def _path(self, kind: str, key: Mapping[str, Any]) -> Path:
        return self.folder / f"{kind}-{name_of(key)}.json"
