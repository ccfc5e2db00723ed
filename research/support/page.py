"""A part of a Markdown page that a measurement renews: what stands between ``<!-- MARK -->`` and ``<!-- /MARK -->``."""

from __future__ import annotations

import os
from pathlib import Path

from zoexport.core.errors import ConfigError
from zoexport.core.files import atomic_file
from zoexport.report import check_can_draw


def replace(page: Path, mark: str, content: str) -> None:
    """Replace what stands between the lines of a mark.

    Raises:
        ConfigError: the page has no such lines, or cannot be written.
    """
    before, after = marked(page, mark)
    begin, end = _lines(mark)
    with atomic_file(page) as temporary:
        temporary.write_text(f"{before}{begin}\n{content}\n{end}{after}", encoding="utf-8")


def seen_from(page: Path, path: Path) -> str:
    """A file or folder as a page's links name it."""
    return Path(os.path.relpath(path, page.parent)).as_posix()


def check(page: Path, mark: str) -> None:
    """Whether page and pictures can be written, asked before anything is measured.

    Raises:
        ConfigError: the page has no marks, or matplotlib is not installed.
    """
    marked(page, mark)
    check_can_draw(page.with_suffix(".png"))


def marked(page: Path, mark: str) -> tuple[str, str]:
    """What stands before and after a mark's lines.

    Raises:
        ConfigError: the page has no such lines.
    """
    begin, end = _lines(mark)
    try:
        text = page.read_text(encoding="utf-8")
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError("no lines that mark the report's place")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"page {page}",
            found=str(error),
            expected=f"the lines {begin.strip()} and {end.strip()}",
            fix="Check the path, or add the lines.",
        ) from error
    return before, after


def _lines(mark: str) -> tuple[str, str]:
    return f"<!-- {mark} -->\n", f"<!-- /{mark} -->\n"
