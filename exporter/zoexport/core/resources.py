"""Files shared by all languages: in ``graphs/`` of a checkout, or in the installed package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def checkout() -> Path | None:
    """Return the root of the source tree that contains the package, or None for an installed one."""
    root = Path(str(files("zoexport"))).parents[1]
    return root if (root / "Makefile").is_file() else None


def shared(name: str) -> Path:
    """The folder ``name`` of ``graphs/`` that a wheel brings along: ``schema``, ``recipes`` or ``shapes``."""
    package = Path(str(files("zoexport")))
    packaged = package / name
    return packaged if packaged.is_dir() else package.parents[1] / "graphs" / name
