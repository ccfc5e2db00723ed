"""Take the pictures of the site that docs/images has, in Chromium, from the pages in build/site.

make site-pictures
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
SHOTS = (
    ("site-wide.png", "index.html", "", 1280, "light"),
    ("site-narrow.png", "first-run.html", "", 390, "light"),
    ("site-dark.png", "concepts.html", "img[src*=only-dark]", 1280, "dark"),
)
"""Picture, page, what is at the top, width in pixels, and color scheme."""


def take(site: Path, folder: Path) -> None:
    """Write the pictures of a built site into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name, page_name, top, width, scheme in SHOTS:
            size = {"width": width, "height": 800}
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto((site / page_name).resolve().as_uri())
            if top:
                page.locator(top).first.evaluate("one => one.scrollIntoView({block: 'center'})")
            page.wait_for_timeout(500)  # the theme hides or shows its header after scrolling
            page.screenshot(path=folder / name)
            page.close()
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, default=ROOT / "build/site")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/images")
    arguments = parser.parse_args()
    take(arguments.site, arguments.output)
