"""Chromium, and axe-core's rules."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.support.hosts import BUILD, needed
from tests.support.hosts import run as run_tool

HERE = Path(__file__).parent
FOLDER = BUILD / "browser"
AXE = FOLDER / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of package-lock.json; npm compares its hash."""
    lock, wanted = FOLDER / "package-lock.json", HERE / "package-lock.json"
    if not AXE.is_file() or lock.read_bytes() != wanted.read_bytes():
        npm = needed("npm", "npm (Debian, Ubuntu: apt-get install npm), for axe-core")
        FOLDER.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "package.json", FOLDER)
        shutil.copy(wanted, lock)
        run_tool(npm, "ci", "--no-audit", "--no-fund", cwd=FOLDER)
    return AXE.read_text("utf-8")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = needed("chromium", "Chromium (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=str(chromium), args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()
