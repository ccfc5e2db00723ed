"""The site builds in strict mode: no page, link, heading or name of the code that is not there."""

from __future__ import annotations

import html
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(root: Path, output: Path, repository: str = "") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(root / "mkdocs.yml")]
    environment = {**os.environ, "ZOEXPORT_REPOSITORY": repository}
    return subprocess.run(
        [*line, "--site-dir", str(output)], capture_output=True, text=True, env=environment
    )


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
    verbs = text_of(site / "reference" / "cli.html")
    for words in ("zoexport federate simulate", "--patience"):
        assert words in verbs
    settings = text_of(site / "reference" / "settings.html")
    for words in ("lora.r", "rank of an adapter", "perturbation_bits", "at least 1"):
        assert words in settings
    api = text_of(site / "reference" / "python.html")
    for words in ("finetune", "compile", "Bundle", "best_step", "sampling of the next token"):
        assert words in api.lower() or words in api
    assert "Sentinel" not in (site / "reference" / "cli.html").read_text("utf-8")
    assert ":class:" not in api and ":meth:" not in api


@pytest.mark.parametrize(
    ("page", "anchor", "words", "hidden"),
    [
        ("c", "zo_session_train", "Trains until the state has steps steps", "ZO_API"),
        ("c", "zo_job_open", "zo_job_close", "extern"),
        ("kotlin", "TrainingSession.train", "Trains until the run has totalSteps", "internal"),
        ("kotlin", "JobView", "bestStep: Long?", "json.of"),
        ("swift", "TrainingSession.step", "Takes one step on the examples", "private"),
        ("swift", "Tensor.DType", "case float32, int64", "CodingKeys"),
    ],
)
def test_reference_of_a_language(
    site: Path, page: str, anchor: str, words: str, hidden: str
) -> None:
    path = site / "reference" / f"{page}.html"
    assert f'id="{anchor}"' in path.read_text("utf-8")
    text = text_of(path)
    assert words in text and hidden not in text


def test_anchors_of_references_are_unique(site: Path) -> None:
    for path in (site / "reference").glob("*.html"):
        found = re.findall(r'<h[1-6] id="([^"]*)"', path.read_text("utf-8"))
        assert len(found) == len(set(found)) > 0, path


def test_source_links_depend_on_the_repository(site: Path) -> None:
    """A page names its source; the links that the theme offers would fetch from the repository."""
    assert "Source of this page: docs/first-run.md" in text_of(site / "first-run.html")
    assert 'data-md-component="source"' not in (site / "index.html").read_text("utf-8")


def test_pairs_of_blocks_are_tabs_and_pages_have_edit_links(copy: Path, tmp_path: Path) -> None:
    blocks = "```sh\nzoexport doctor\n```\n\n```python\nimport zoexport\n```\n"
    page = copy / "docs" / "concepts.md"
    page.write_text(f"{page.read_text('utf-8')}\n{blocks}\n{blocks}\nText.\n\n```sh\nlast\n```\n")
    done = build(copy, tmp_path / "site", "https://example.org/zoexport")
    assert done.returncode == 0, done.stderr
    content = (tmp_path / "site" / "concepts.html").read_text("utf-8")
    labels = re.findall(r'<div class="tabbed-labels">(.*?)</div>', content)
    assert len(labels) >= 2
    for one in labels[-2:]:
        assert re.sub(r"<[^>]*>", " ", one).split() == ["CLI", "Python"]
    assert content.index("tabbed-set") < content.index(">last")
    assert 'href="https://example.org/zoexport/edit/main/docs/concepts.md"' in content
    for feature in ("content.code.copy", "content.tabs.link"):
        assert feature in content


def test_pictures_have_dark_variants(site: Path) -> None:
    for page, name in (("index", "demo.png"), ("concepts", "dual-forwarding.svg")):
        content = (site / f"{page}.html").read_text("utf-8")
        dark = name.replace(".", "-dark.")
        assert f'src="images/{name}#only-light"' in content
        assert f'src="images/{dark}#only-dark"' in content
        assert (site / "images" / dark).is_file()
    for one in (site / "images").glob("*.svg"):
        assert "prefers-color-scheme" not in one.read_text("utf-8"), one


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


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What the site is made from, in a folder that a test may change."""
    pytest.importorskip("mkdocs", reason="the extra 'docs' is not installed")
    root = tmp_path / "copy"
    ignored = shutil.ignore_patterns("_native", "__pycache__", ".gradle", ".cxx", "build")
    for name in ("docs", "exporter/zoexport", "android_app", "ios_app", "runtime_ops/include"):
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    for name in ("mkdocs.yml", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, root)
    return root


def test_a_link_that_leads_nowhere_fails(copy: Path, tmp_path: Path) -> None:
    page = copy / "docs" / "concepts.md"
    page.write_text(page.read_text("utf-8") + "\n[a](formats.md#no-such-heading) [b](none.md)\n")
    done = build(copy, tmp_path / "site")
    assert done.returncode != 0
    assert "no-such-heading" in done.stderr and "none.md" in done.stderr


def test_drawings_are_current() -> None:
    """Renew them by python docs/site/drawings.py."""
    for name, draw in runpy.run_path(str(ROOT / "docs/site/drawings.py"))["DRAWINGS"].items():
        assert (ROOT / "docs" / "images" / name).read_text("utf-8") == draw().text(), name
