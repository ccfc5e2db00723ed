"""The site in Chromium: no console message, nothing from elsewhere, no sideways scrolling, axe-core, the keyboard."""

from __future__ import annotations

import functools
import http.server
import runpy
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.network]

ROOT = Path(__file__).parents[2]
PAGES = (
    "index",
    "first-run",
    "concepts",
    "choose",
    "reference/cli",
    "reference/python",
    "reference/c",
)


CUT_OFF = """[...document.querySelectorAll("pre > code")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1 && !one.closest(".language-text"))
  .map((one) => one.textContent)"""
"""Code that is wider than its block. Output scrolls, as its columns are aligned."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(ROOT / "mkdocs.yml")]
    subprocess.run([*line, "--site-dir", str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_site_in_a_browser(
    site: str, browser: Browser, axe: str, width: int, scheme: Any
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"{page.url}: {error}"))
    page.on(
        "request", lambda one: None if one.url.startswith((site, "data:")) else said.append(one.url)
    )
    problems = []
    for name in PAGES:
        page.goto(f"{site}/{name}.html")
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate(CUT_OFF) == [], name
        dark = page.evaluate("document.body.getAttribute('data-md-color-scheme')") == "slate"
        assert dark == (scheme == "dark")
        page.evaluate(axe)
        found = page.evaluate("axe.run()")
        assert len(found["passes"]) > 15
        problems += [
            (name, one["id"], [node["html"][:120] for node in one["nodes"]][:3])
            for one in found["violations"]
        ]
    assert problems == []
    assert said == []
    context.close()


def test_the_keyboard_reaches_what_the_mouse_does(site: str, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{site}/concepts.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className").startswith("md-skip")
    seen = set()
    for _ in range(150):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.getAttribute('href')"))
    assert {"architecture.html", "formats.html"} <= seen
    page.close()


def test_pages_from_the_disk_have_search(folder: Path, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    problems: list[str] = []
    page.on("requestfailed", lambda request: problems.append(request.url))
    page.goto((folder / "concepts.html").as_uri())
    page.keyboard.press("f")  # the theme's key for its search
    page.keyboard.type("trajectory log")
    page.wait_for_selector(".md-search-result__item", timeout=20000)
    assert problems == []
    page.close()


def test_the_palette_switches_pictures_too(folder: Path, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page.goto((folder / "concepts.html").as_uri())
    shown = "[...document.querySelectorAll('article img')].filter((one) => one.offsetWidth)"
    for variant in ("light", "light", "dark", "light"):  # system, light, dark, system
        names = page.evaluate(f"{shown}.map((one) => one.src)")
        assert names and all(name.endswith(f"#only-{variant}") for name in names)
        page.locator("label.md-header__button[for^=__palette]:visible").click()
    page.close()


def test_tabs_are_linked_and_code_is_copied(site: str, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{site}/first-run.html")
    sets = page.locator(".tabbed-set")
    assert sets.count() >= 2
    sets.first.get_by_text("Python", exact=True).click()
    for number in range(sets.count()):
        assert sets.nth(number).locator(".language-python").first.is_visible()
        assert not sets.nth(number).locator(".language-sh").first.is_visible()
    block = sets.first.locator(".language-python").first
    block.hover()
    block.locator("button").first.click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == block.locator("code").text_content().strip()
    context.close()


def test_screenshots_are_taken(folder: Path, tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "docs/site/screenshots.py"))
    line = [sys.executable, str(ROOT / "docs/site/screenshots.py"), "--site", str(folder)]
    subprocess.run([*line, "--output", str(tmp_path)], check=True)
    for name, _, _, width, _ in script["SHOTS"]:
        assert struct.unpack(">I", (tmp_path / name).read_bytes()[16:20]) == (width,)
