"""Digest of the code that determines the output of ``compile``, used as a cache key."""

from __future__ import annotations

import functools
import hashlib
from importlib.metadata import version
from pathlib import Path

from zoexport.core.version import __version__

_ROOT = Path(__file__).parents[1]
_PARTS = ("core", "ir", "passes", "methods", "targets", "models", "trained", "compiler")


@functools.cache
def compiler_digest() -> str:
    """Return the SHA-256 of the compiler's source files and the versions of its dependencies."""
    digest = hashlib.sha256()
    packages = [f"{name} {version(name)}" for name in ("torch", "executorch", "transformers")]
    digest.update("\n".join([__version__, *packages]).encode())
    for part in _PARTS:
        for file in sorted((_ROOT / part).rglob("*.py")):
            digest.update(str(file.relative_to(_ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()
