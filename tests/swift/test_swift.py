"""The Swift host: built with its tests, run, its states compared with Python's.

Needs Swift 5.9 or newer: the one on the PATH, or else the one that ``.ci/install-swift`` puts into the cache.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.hosts import BUILD, ROOT, check_states, run
from zoexport.core.native import library_path
from zoexport.fetch import cache_dir

pytestmark = pytest.mark.slow
FOLDER = BUILD / "swift"
HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def swift() -> Callable[..., list[object]]:
    """Makes the command for ``swift`` that sees these folders."""
    if found := shutil.which("swift"):
        return lambda *_folders: [found]
    root = cache_dir() / "swift-trixie"
    if not root.is_dir():
        pytest.fail(
            f"swift was not found on the PATH, nor in {root}. Install Swift 5.9 or newer, or run "
            ".ci/install-swift as root, which fetches Debian's into that folder.",
            pytrace=False,
        )
    if os.geteuid() != 0:
        pytest.fail(
            f"the swift in {root} is entered with chroot, which needs root, and there is none on the "
            "PATH. Install Swift 5.9 or newer, or run this as root.",
            pytrace=False,
        )
    return lambda *folders: [HERE / "chroot.sh", root, *folders, "--", "swift"]


def executorch_folder() -> Path:
    """The libraries that ours is linked with."""
    import executorch

    return Path(next(iter(executorch.__path__))) / "lib"


def test_swift(swift: Callable[..., list[object]], host_case: Path, tmp_path: Path) -> None:
    native = library_path().resolve().parent
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = swift(ROOT, native, executorch_folder(), host_case, tmp_path)
    environment = {
        "HOME": FOLDER,  # Swift's own caches
        "ZOEXPORT_CASE": host_case,
        "ZOEXPORT_OUTPUT": tmp_path,
        "ZOEXPORT_GOLDEN": ROOT / "graphs" / "golden" / "rng.json",
    }
    output = run(
        *command,
        "test",
        *("--package-path", HERE, "--scratch-path", FOLDER / "build"),
        *("-Xswiftc", "-warnings-as-errors"),
        *("-Xlinker", f"-L{native}", "-Xlinker", "-rpath", "-Xlinker", native),
        environment=environment,
    )
    sys.stdout.write(output)
    assert re.search(r"Executed [1-9]\d* tests, with 0 failures", output)
    check_states(host_case, tmp_path)
