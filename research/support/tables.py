"""The tables that pages publish, kept as CSV: ``research/results/NAME.csv`` for ``docs/results/NAME.md``.

An empty line ends a table. A table's first row is its header, and the first column names the part of the page. Raw runs
are not kept in the repository: reports write them to ``build/research/``.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from zoexport.core.files import atomic_file

ROOT = Path(__file__).parents[2]
RAW = ROOT / "build" / "research"
"""Default place of raw runs, a folder for each report; git ignores it."""
PART = "part"
"""The name of each table's first column."""
Table = list[list[str]]


def file_of(page: Path) -> Path:
    """Return the file with a page's tables: in ``research/results``, or beside a page outside ``docs/results``."""
    if page.resolve().parent == ROOT / "docs" / "results":
        return ROOT / "research" / "results" / f"{page.stem}.csv"
    return page.with_suffix(".csv")


def found_in(markdown: str) -> list[Table]:
    """Return the tables of a Markdown text, and its list items as a last table with the column ``note``."""
    tables: list[Table] = []
    notes: Table = []
    before = ""
    for line in markdown.splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in re.split(r" \|(?= )", line[1:-1])]
            if not before.startswith("| "):
                tables.append([])
            if set(cells) != {"---"}:
                tables[-1].append(cells)
        elif line.startswith("- "):
            notes.append([line.removeprefix("- ")])
        elif notes and line.startswith("  "):
            notes[-1][0] += f" {line.strip()}"
        before = line
    return [*tables, [["note"], *notes]] if notes else tables


def read(file: Path) -> dict[str, list[Table]]:
    """Return the tables by part, without the first column; empty if there is no file."""
    parts: dict[str, list[Table]] = {}
    if not file.exists():
        return parts
    for block in file.read_text(encoding="utf-8").split("\n\n"):
        header, *rows = csv.reader(io.StringIO(block))
        parts.setdefault(rows[0][0], []).append([row[1:] for row in (header, *rows)])
    return parts


def renew(file: Path, part: str, tables: list[Table]) -> None:
    """Replace a part's tables in a file, which is written if it does not exist.

    Raises:
        ConfigError: the file cannot be written.
    """
    blocks = []
    for name, known in {**read(file), part: tables}.items():
        for header, *rows in known:
            if rows:
                text = io.StringIO()
                written = csv.writer(text, lineterminator="\n")
                written.writerows([[PART, *header], *([name, *row] for row in rows)])
                blocks.append(text.getvalue())
    with atomic_file(file) as temporary:
        temporary.write_text("\n".join(blocks), encoding="utf-8")
