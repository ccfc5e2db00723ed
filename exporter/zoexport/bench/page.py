"""``python -m zoexport.bench.page PAGE FOLDER``: put a measurement's picture and tables into a Markdown page.

What stands between the page's lines ``<!-- bench -->`` and ``<!-- /bench -->`` is replaced by what FOLDER, written by
``zoexport bench -o``, holds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from zoexport.bench import output
from zoexport.core.errors import ConfigError, ZoExportError
from zoexport.core.files import atomic_file

BEGIN, END = "<!-- bench -->\n", "<!-- /bench -->\n"


def update(page: Path, folder: Path) -> None:
    """Replace the page's part between the marks.

    Raises:
        ConfigError: the page has no marks, the folder no measurement, or the page cannot be written.
    """
    try:
        text = page.read_text(encoding="utf-8")
        result = json.loads((folder / output.JSON).read_text(encoding="utf-8"))
        before, _, rest = text.partition(BEGIN)
        _, mark, after = rest.partition(END)
        if not mark:
            raise ValueError(f"no lines '{BEGIN.strip()}' and '{END.strip()}' in {page}")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"page {page}",
            found=str(error),
            expected=f"a page with marks, and {output.JSON} in {folder}",
            fix="Check the paths; 'zoexport bench -o' writes the folder.",
        ) from error
    picture = os.path.relpath(folder / output.PICTURE, page.parent)
    content = f"![Seconds a step]({Path(picture).as_posix()})\n\n{output.markdown(result)}"
    with atomic_file(page) as temporary:
        temporary.write_text(f"{before}{BEGIN}\n{content}\n{END}{after}", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """The command."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m zoexport.bench.page PAGE FOLDER\n")
        return 2
    try:
        update(Path(arguments[0]), Path(arguments[1]))
    except ZoExportError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
