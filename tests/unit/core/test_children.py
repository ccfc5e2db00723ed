"""Processes that end with another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from zoexport.core.children import runs

_SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_process_that_waits_for_its_parent_has_ended() -> None:
    process = subprocess.Popen(_SLEEP)
    assert runs(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not runs(process.pid)
    process.wait()
    assert not runs(process.pid)


def test_a_process_dies_with_one_that_is_not_its_parent(tmp_path: Path) -> None:
    watched = subprocess.Popen(_SLEEP)
    script = (
        "import sys, time; from zoexport.core.children import die_with;"
        "die_with(int(sys.argv[1])); print('begun', flush=True); time.sleep(600)"
    )
    watcher = subprocess.Popen(
        [sys.executable, "-c", script, str(watched.pid)], stdout=subprocess.PIPE, cwd=tmp_path
    )
    try:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == b"begun\n"
        assert watcher.poll() is None
        watched.kill()
        watched.wait()
        assert watcher.wait(60) == 1
    finally:
        for process in (watched, watcher):
            process.kill()
        watcher.communicate()
