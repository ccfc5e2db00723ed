"""The site builds in strict mode: no page, link, heading or name of the code that is not there."""

from __future__ import annotations

import html
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(root: Path, output: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(root / "mkdocs.yml")]
    return subprocess.run([*line, "--site-dir", str(output)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the extra 'docs' is not installed")
    output = tmp_path_factory.mktemp("site") / "site"
    done = build(ROOT, output)
    assert done.returncode == 0, done.stderr
    return output


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", page.read_text("utf-8")))


def test_reference_is_made_from_the_code(site: Path) -> None:
    verbs = text_of(site / "reference" / "verbs.html")
    for words in ("zoexport federate simulate", "--patience", "Start from this adapter of PEFT's"):
        assert words in verbs
    settings = text_of(site / "reference" / "settings.html")
    for words in ("lora.r", "inner size of an adapter", "perturbation_bits", "at least 1"):
        assert words in settings
    api = text_of(site / "reference" / "api.html")
    for words in ("compile", "Bundle", "best_step", "sampling of the next token"):
        assert words in api.lower() or words in api
    assert ":class:" not in api and ":meth:" not in api


def test_pages_outside_of_docs_are_there_and_nothing_is_fetched(site: Path) -> None:
    for page in ("CONTRIBUTING.html", "CHANGELOG.html", "ios_app/index.html"):
        assert (site / page).is_file()
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link|iframe)[^>]*?(?:src|href)="(https?:[^"]*)"',
            page.read_text("utf-8"),
        )
        assert loaded == [], page


def test_lists_and_tables_are_such(site: Path) -> None:
    """Markdown's dialects differ in what begins a list: none is left as text of a paragraph."""
    for page in site.rglob("*.html"):
        content = page.read_text("utf-8")
        assert re.findall(r"<p>[^<]*(?:<(?!/p)[^<]*)*\n(?:- |\d\. |\| )", content) == [], page


def test_a_link_that_leads_nowhere_fails(site: Path, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    for name in ("docs", "exporter/zoexport", "ios_app"):
        ignored = shutil.ignore_patterns("_native", "__pycache__")
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    for name in ("mkdocs.yml", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, root)
    page = root / "docs" / "concepts.md"
    page.write_text(page.read_text("utf-8") + "\n[a](cli.md#no-such-heading) [b](none.md)\n")
    done = build(root, tmp_path / "site")
    assert done.returncode != 0
    assert "no-such-heading" in done.stderr and "none.md" in done.stderr


def test_drawings_are_current() -> None:
    """Renew them by python docs/site/drawings.py."""
    for name, draw in runpy.run_path(str(ROOT / "docs/site/drawings.py"))["DRAWINGS"].items():
        assert (ROOT / "docs" / "images" / name).read_text("utf-8") == draw().text(), name
