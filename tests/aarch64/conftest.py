"""Builds for 64-bit ARM when the first test that needs it begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from tests.support.hosts import BUILD, environment_tool, run


@pytest.fixture(scope="session", autouse=True)
def build() -> None:
    """The Makefile's build, with the packages of this Python, which are there already."""
    target = Path("build") / "aarch64" / ".built"
    with FileLock(BUILD / "aarch64.lock"):  # of other tests that need it
        packages = environment_tool("python").parent
        run("make", "-o", ".venv/.packages", f"BIN={packages}", target)
