"""Cache of files of frozen weights, so that the next compilation of the same model can copy them.

Reading and quantizing weights takes time in proportion to their size, and the result depends on few
settings. The files are in ``weights`` below the cache, named by a hash of everything that
determines their content. The SHA-256 of each is in a second file, and a damaged file is written
again. The least recently used files are deleted first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from zoexport.core.errors import ConfigError
from zoexport.core.fetch import cache_dir
from zoexport.core.files import atomic_file, hashed

MOST_BYTES = 8 << 30
"""Maximum size of all files together; larger files are not kept."""
LEAST_BYTES = 16 << 20
"""Minimum size of a kept file; smaller ones are written quickly."""
_DIGEST = ".sha256"


def write_once(path: Path, key: str, write: Callable[[Path], None]) -> bool:
    """Write a file, or copy the one that was kept under the same key.

    If the cache cannot be read or written, or the disk is full, the file is written and nothing is
    kept.

    Args:
        path: path of the file. key: hexadecimal digits that identify the content.
        write: function that writes the file to a path.

    Returns:
        True if the file was copied.
    """
    kept = cache_dir() / "weights" / f"{key}.safetensors"
    if _copied(kept, path):
        return True
    write(path)
    with contextlib.suppress(ConfigError, OSError):
        _keep(path, kept)
    return False


def _copied(kept: Path, path: Path) -> bool:
    """Copy a kept file if it is undamaged."""
    try:
        expected = kept.with_suffix(_DIGEST).read_text("ascii").strip()
        with kept.open("rb") as source, path.open("wb") as target:
            if hashed(source, target) != expected:
                return False
        os.utime(kept)
    except (OSError, UnicodeDecodeError):
        return False
    return True


def _keep(path: Path, kept: Path) -> None:
    size = path.stat().st_size
    if not LEAST_BYTES <= size <= MOST_BYTES:
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    _make_room(kept.parent, size)
    if shutil.disk_usage(kept.parent).free < 2 * size:
        return
    with atomic_file(kept) as temporary, path.open("rb") as source, temporary.open("wb") as target:
        digest = hashed(source, target)
    with atomic_file(kept.with_suffix(_DIGEST)) as temporary:
        temporary.write_text(f"{digest}\n", "ascii")


def _make_room(folder: Path, size: int) -> None:
    """Delete the least recently used files until ``size`` more bytes fit."""
    found = sorted((file.stat().st_mtime, file) for file in folder.glob("*.safetensors"))
    total = size + sum(file.stat().st_size for _, file in found)
    for _, file in found:
        if total <= MOST_BYTES:
            break
        total -= file.stat().st_size
        for one in (file, file.with_suffix(_DIGEST)):
            one.unlink(missing_ok=True)
