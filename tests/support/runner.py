"""``zoexport-runner`` as its tests call it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from zoexport.core.native import runner_path


def ran(verb: str, bundle: Path, *arguments: object, code: int = 0) -> dict[str, Any]:
    """A verb's JSON, the last line of what it writes; it ends with this exit code."""
    line = [runner_path(), verb, "--bundle", bundle, *arguments, "--json"]
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
