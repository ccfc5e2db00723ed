"""``python -m research.performance.page PAGE FOLDER [MARK]``: put a benchmark's tables into a page.

What stands between the page's lines ``<!-- MARK -->`` and ``<!-- /MARK -->`` (``bench`` where no mark is given) is
replaced by what FOLDER, written by ``zoexport bench -o``, holds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from research.support.command import exit_status
from research.support.page import publish
from zoexport.core.errors import ConfigError
from zoexport.tools.bench import output

MARK = "bench"


def update(page: Path, folder: Path, mark: str = MARK) -> None:
    """Replace the page's part between the marks by a measurement's.

    Raises:
        ConfigError: the page has no marks, the folder no measurement, or the page cannot be written.
    """
    publish(page, mark, output.markdown(measured(folder)))


def measured(folder: Path) -> dict[str, Any]:
    """What ``zoexport bench -o`` wrote there.

    Raises:
        ConfigError: it has no measurement.
    """
    try:
        result: dict[str, Any] = json.loads((folder / output.JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"folder {folder}",
            found=str(error),
            expected=f"{output.JSON}, which 'zoexport bench -o' writes",
            fix="Check the path, or measure first.",
        ) from error
    return result


def main(arguments: Sequence[str]) -> int:
    """The command."""
    if len(arguments) not in (2, 3):
        sys.stderr.write("usage: python -m research.performance.page PAGE FOLDER [MARK]\n")
        return 2
    return exit_status(lambda _: update(Path(arguments[0]), Path(arguments[1]), *arguments[2:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
