"""A part of a Markdown page that a measurement renews: what stands between ``<!-- MARK -->`` and ``<!-- /MARK -->``."""

from __future__ import annotations

from pathlib import Path

from research.support import tables
from zoexport.core.errors import ConfigError
from zoexport.core.files import atomic_file


def replace(page: Path, mark: str, content: str) -> None:
    """Replace what stands between the lines of a mark.

    Raises:
        ConfigError: the page has no such lines, or cannot be written.
    """
    before, after = marked(page, mark)
    begin, end = _lines(mark)
    with atomic_file(page) as temporary:
        temporary.write_text(f"{before}{begin}\n{content}\n{end}{after}", encoding="utf-8")


def publish(page: Path, mark: str, content: str, *, runs: str = "") -> None:
    """Replace a marked part of a page, and its tables in the page's CSV file.

    Args:
        page: the page.
        mark: the part's mark.
        content: the part's new text.
        runs: a Markdown table of single runs, which only the CSV file has.

    Raises:
        ConfigError: the page has no such lines, or a file cannot be written.
    """
    replace(page, mark, content)
    tables.renew(tables.file_of(page), mark, tables.found_in(f"{runs}\n\n{content}"))


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
