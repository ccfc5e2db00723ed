"""Builds of the C++ code with a sanitizer, every finding of which ends the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from tests.support.hosts import BUILD, ROOT, environment_tool, run


def build(kind: str, target: str) -> Path:
    """Build a target with ``address`` (and undefined behaviour) or ``thread``; the folder of the build."""
    cmake, ninja = environment_tool("cmake"), environment_tool("ninja")
    options = ["-GNinja", "-DCMAKE_BUILD_TYPE=Release", f"-DZOEXPORT_SANITIZE={kind}"]
    options += [f"-DCMAKE_MAKE_PROGRAM={ninja}", f"-DPython3_EXECUTABLE={sys.executable}"]
    folder = BUILD / kind
    with FileLock(folder.with_suffix(".lock")):  # of other tests that need it
        run(cmake, f"-S{ROOT}", f"-B{folder}", *options)
        line = [str(cmake), "--build", str(folder), "--target", target]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return folder
