"""``python -m zoexport.bench.page PAGE FOLDER [MARK]``: put a measurement's pictures and tables into a Markdown page.

What stands between the page's lines ``<!-- MARK -->`` and ``<!-- /MARK -->`` (``bench`` where no mark is given) is
replaced by what FOLDER, written by ``zoexport bench -o``, holds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from zoexport.bench import output
from zoexport.bench.command import exit_status
from zoexport.core.errors import ConfigError
from zoexport.core.files import atomic_file
from zoexport.report import check_can_draw

MARK = "bench"


def update(page: Path, folder: Path, mark: str = MARK) -> None:
    """Replace the page's part between the marks by a measurement's.

    Raises:
        ConfigError: the page has no marks, the folder no measurement, or the page cannot be written.
    """
    try:
        result = json.loads((folder / output.JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"page {page}",
            found=str(error),
            expected=f"{output.JSON} in {folder}",
            fix="Check the paths; 'zoexport bench -o' writes the folder.",
        ) from error
    place = Path(os.path.relpath(folder, page.parent)).as_posix()
    replace(page, mark, f"{output.pictures(folder, f'{place}/')}\n\n{output.markdown(result)}")


def replace(page: Path, mark: str, content: str) -> None:
    """Replace what stands between the lines of a mark.

    Raises:
        ConfigError: the page has no such lines, or cannot be written.
    """
    before, after = marked(page, mark)
    begin, end = _lines(mark)
    with atomic_file(page) as temporary:
        temporary.write_text(f"{before}{begin}\n{content}\n{end}{after}", encoding="utf-8")


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


def main(arguments: Sequence[str]) -> int:
    """The command."""
    if len(arguments) not in (2, 3):
        sys.stderr.write("usage: python -m zoexport.bench.page PAGE FOLDER [MARK]\n")
        return 2
    return exit_status(lambda _: update(Path(arguments[0]), Path(arguments[1]), *arguments[2:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
