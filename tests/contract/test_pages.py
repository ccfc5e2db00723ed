"""Every link of a Markdown page to a file of the repository, or to a heading, leads somewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
).stdout.splitlines()


def headings(page: Path) -> set[str]:
    """As links name them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> list[str]:
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (heading and heading not in headings(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    assert broken_links(ROOT / page) == []


GENERATED = re.compile(r"<!-- (\w[\w -]*) -->\n.*?<!-- (?:/\1|end) -->", re.DOTALL)
WRITTEN = sorted((ROOT / "docs").glob("*.md"))
"""Pages written by hand; ``reference`` and ``results`` are generated."""


def test_the_pages_stay_short() -> None:
    words = sum(len(GENERATED.sub("", page.read_text("utf-8")).split()) for page in WRITTEN)
    assert 10_000 < words <= 30_000


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_a_page_opens_with_what_the_reader_can_do(page: Path) -> None:
    opening = page.read_text("utf-8").split("\n\n")[1]
    assert re.search(r"\byou\b", opening, re.IGNORECASE), opening


def test_pages_that_code_names_are_there() -> None:
    listed = ["git", "grep", "-hoE", r"\bdocs/[a-z0-9/-]+\.md", "--", ":!docs", ":!CHANGELOG.md"]
    found = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = set(found.splitlines())
    assert len(names) > 10
    assert [name for name in sorted(names) if not (ROOT / name).is_file()] == []
