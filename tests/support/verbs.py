"""Verbs of the command line, each as its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A verb with ``--json``, as its own process."""
    line = [sys.executable, "-m", "zoexport", *map(str, arguments), "--json"]
    return subprocess.run(line, capture_output=True, text=True)


def verb(*arguments: object) -> dict[str, Any]:
    """The result of a verb that succeeds."""
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    result: dict[str, Any] = json.loads(lines[0])
    return result
