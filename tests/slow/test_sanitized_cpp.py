"""The C++ tests, and the kept inputs of the fuzz targets, under sanitizers (``make test-sanitized``)."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support import sanitized
from tests.support.hosts import environment_tool

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["address", "thread"])
def test_nothing_is_found(kind: str) -> None:
    folder = sanitized.build(kind, "tests")
    line = [environment_tool("ctest"), "--test-dir", folder, "--output-on-failure"]
    done = subprocess.run(
        [*map(str, line), "--no-tests=error"],
        env={**os.environ, "ASAN_OPTIONS": "handle_sigbus=0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
