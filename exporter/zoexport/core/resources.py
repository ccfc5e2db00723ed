"""Where the files are that every language reads: ``graphs/`` of a checkout, or the installed package's own folders."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def in_checkout() -> bool:
    """Whether the package lies in a source tree, of which ``make`` builds it."""
    return (Path(str(files("zoexport"))).parents[1] / "Makefile").is_file()


def shared(name: str) -> Path:
    """The folder ``name`` of ``graphs/`` that a wheel brings along: ``schema``, ``recipes`` or ``shapes``."""
    package = Path(str(files("zoexport")))
    packaged = package / name
    return packaged if packaged.is_dir() else package.parents[1] / "graphs" / name
