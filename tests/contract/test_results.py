"""Each number that a page of results publishes is in the page's tables, ``research/results/*.csv``.

Numbers in a row of a table count as the row; in a marked part the row must be the same. Numbers in text must be in the
tables of their section, except single digits. Values of ``stated`` rows must be in the table that is their source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from research.support.tables import PART, ROOT, Table, found_in, read

DOCS, RESULTS = ROOT / "docs", ROOT / "research" / "results"
PAGES = (
    "claims",
    "performance",
    "results/federation",
    "results/generation",
    "results/learning",
    "results/numbers",
    "results/performance",
    "results/targets",
)
DESCRIBED = ("Measure your own model", "What the figures mean")
"""Sections of the performance page that explain how it is measured."""
STATED = ["values", "what", "source"]
MARKED = re.compile(r"<!-- (\S+) -->\n(.*?)<!-- /\1 -->\n", re.DOTALL)
NOT_RESULTS = re.compile(r"`[^`\n]*`|\]\([^)]*\)|\d{4}-\d\d-\d\d")
NUMBER = re.compile(r"(?<![\w.])(?<!\w-)\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?!\w|\.\d)")


def numbers(text: str) -> set[str]:
    """Return the numbers of a text; code, links, dates and numbers inside words are none."""
    plain = re.sub(r"(?<=\d)x\b|\.\.", " ", NOT_RESULTS.sub(" ", text))  # 1.5x, 0.1..0.2
    found = NUMBER.findall(plain)
    return {number.replace(",", "") for number in found}


def in_tables(tables: list[Table]) -> set[str]:
    return {number for table in tables for row in table for number in numbers(" ".join(row))}


def sections(page: str) -> Iterator[tuple[str, str]]:
    for section in re.split(r"(?m)^#+ ", re.sub(r"(?ms)^```.*?^```\n", "", page))[1:]:
        title, _, text = section.partition("\n")
        yield title, text


def missing(page: str, parts: dict[str, list[Table]]) -> list[str]:
    """Return the lines of a page with numbers that its tables do not have."""
    lines: list[str] = []
    for title, text in sections(page):
        if title in DESCRIBED:
            continue
        marked = {match[1]: match[2] for match in MARKED.finditer(text)}
        for mark, content in marked.items():
            known = [row for table in parts.get(mark, []) for row in table]
            rows = [row for table in found_in(content) for row in table]
            lines += [" | ".join(row) for row in rows if row not in known]
        tables = [table for name in (*marked, title) for table in parts.get(name, [])]
        known_numbers = in_tables(tables)
        for line in re.sub(r"`[^`]*`", " ", MARKED.sub("", text)).splitlines():
            found = numbers(line)
            if not line.startswith("| "):
                found = {number for number in found if len(number) > 1}
            if found - known_numbers:
                lines.append(line)
    return lines


def missing_claims(page: str, parts: dict[str, list[Table]]) -> list[str]:
    """Return the rows of the page of claims whose numbers are not those of the same claim in its tables."""
    lines = []
    for title, text in sections(page):
        rows = [row for table in parts.get(title, []) for row in table[1:]]
        for table in found_in(text):
            for claim, *cells in table[1:] if table[0][0] == "claim" else []:
                known = in_tables([[row[1:2] for row in rows if row[0] == claim]])
                if numbers(" | ".join([claim, *cells[:-1]])) - known:
                    lines.append(claim)
    return lines


def check(name: str, page: str) -> list[str]:
    parts = read(RESULTS / f"{Path(name).name}.csv")
    if name == "claims":
        return missing_claims(page, parts)
    if name == "results/targets":  # only its marked parts are measured by research
        page = "\n".join(["# Targets", *(match[0] for match in MARKED.finditer(page))])
    return missing(page, parts)


def without_source(parts: dict[str, list[Table]]) -> list[str]:
    """Return the values of rows written by hand that round no number of the table that is named as source."""
    lines = []
    for table in (table for tables in parts.values() for table in tables):
        if table[0][-3:] != STATED:
            continue
        for *_, values, what, source in table[1:]:
            file, _, part = source.partition(" ")
            if not (RESULTS / f"{file}.csv").exists():
                continue
            tables = read(RESULTS / f"{file}.csv").get(part, [])
            known = [float(number) for number in in_tables(tables)]
            for value in values.split():
                digits = len(value.partition(".")[2]) if "e" not in value else 9
                half = 0.5 * 10.0**-digits + 1e-9
                if not any(abs(number - float(value)) <= half for number in known):
                    lines.append(f"{value}: {what} ({source})")
    return lines


@pytest.mark.parametrize("name", PAGES)
def test_numbers_of_pages_are_in_tables(name: str) -> None:
    assert check(name, (DOCS / f"{name}.md").read_text("utf-8")) == []


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.csv")), ids=lambda file: file.stem)
def test_stated_values_are_in_their_source(file: Path) -> None:
    assert file.read_text("utf-8").startswith(f"{PART},")
    assert without_source(read(file)) == []


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("claims", "17 MB together", "18 MB together"),
        ("claims", "0.484 against 0.579", "0.484 against 0.545"),  # another claim's number
        ("results/learning", "| 3.5986 | 3.5986 |", "| 3.5986 | 3.5985 |"),
        ("results/learning", "+0.095 +- 0.090", "+0.096 +- 0.090"),
        ("results/learning", "860 GB until 0.60", "861 GB until 0.60"),
        ("results/performance", "| 0.1633 |", "| 0.1634 |"),
        ("performance", "took 0.120 s", "took 0.121 s"),
    ],
)
def test_a_changed_number_is_found(name: str, text: str, changed: str) -> None:
    page = (DOCS / f"{name}.md").read_text("utf-8")
    assert text in page
    assert len(check(name, page.replace(text, changed, 1))) == 1
