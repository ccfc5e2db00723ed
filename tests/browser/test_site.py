"""The site in Chromium: no console message, nothing from elsewhere, no sideways scrolling, axe-core, the keyboard."""

from __future__ import annotations

import functools
import http.server
import os
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
PAGES = ("index", "first-run", "concepts", "cli", "recipes", "reference/verbs", "reference/api")
PICTURES = os.environ.get("ZOEXPORT_SITE_PICTURES")
"""A folder for what docs/images has of the site: ZOEXPORT_SITE_PICTURES=docs/images renews it."""
SHOWN = {(1280, "light"): "site-wide.png", (360, "dark"): "site-narrow.png"}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(ROOT / "mkdocs.yml")]
    subprocess.run([*line, "--site-dir", str(folder)], check=True, capture_output=True)
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
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
        dark = page.evaluate("document.body.getAttribute('data-md-color-scheme')") == "slate"
        assert dark == (scheme == "dark")
        page.evaluate(axe)
        found = page.evaluate("axe.run()")
        assert len(found["passes"]) > 15
        problems += [
            (name, one["id"], [node["html"][:120] for node in one["nodes"]][:3])
            for one in found["violations"]
        ]
        if name == "concepts" and PICTURES is not None and (width, scheme) in SHOWN:
            page.set_viewport_size({"width": width, "height": 760})
            page.evaluate("document.querySelector('#dual-forwarding').scrollIntoView()")
            page.screenshot(path=Path(PICTURES) / SHOWN[width, scheme])
            page.set_viewport_size({"width": width, "height": 900})
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
    assert {"recipes.html", "bundle.html"} <= seen
    page.keyboard.press("f")  # the theme's key for its search
    page.keyboard.type("trajectory log")
    page.wait_for_selector(".md-search-result__item", timeout=20000)
    page.close()
