"""The order of test files in the second tier, which every worker process of a run works out for itself, and its end."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import order
from tests.support.order import ROOT, newest_first


def test_order_does_not_depend_on_how_files_are_listed() -> None:
    """Files of one name in two folders too: workers whose orders differ end the whole run."""
    files = sorted(ROOT.glob("tests/**/test_*.py"))
    names = [path.name for path in files]
    assert len(set(names)) < len(names), "no two test files have one name any more"
    assert newest_first(files) == newest_first(reversed(files))
    assert sorted(newest_first(files)) == files


def test_files_of_the_newest_commits_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(ROOT.glob("tests/**/test_*.py"))
    changed = ROOT / "tests/slow/test_shapes.py"
    imported = ROOT / "exporter/zoexport/device/runner.py"
    monkeypatch.setattr(order, "_commits", lambda: [[imported], [changed]])
    found = newest_first(files)
    importing = [path for path in files if imported in order._imported(path)]
    assert importing and set(found[: len(importing)]) == set(importing)
    assert found[len(importing)] == changed


@pytest.mark.parametrize("most", [5, 12])
def test_a_few_landings_reach_every_file(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Landings of a few commits, in each of which there is time for a quarter of the files."""
    files = sorted(ROOT.glob("tests/**/test_*.py"))[:80]
    commits = 2400
    monkeypatch.setattr(order, "_commits", list)
    monkeypatch.setattr(order, "_count", lambda: commits)
    drawn = random.Random(7)
    reached: set[Path] = set()
    landings = 0
    while len(reached) < len(files):
        reached |= set(newest_first(files)[: len(files) // 4])
        commits += drawn.randint(1, most)
        landings += 1
    assert landings <= 20


def test_a_file_begins_at_another_test_after_each_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    firsts = set()
    for commits in range(2400, 2440):
        monkeypatch.setattr(order, "_count", lambda count=commits: count)
        turned = order.turned(range(30))
        assert sorted(turned) == list(range(30))
        firsts.add(turned[0])
    assert len(firsts) > 20


def test_what_runs_too_long_is_ended_and_named(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import time\nimport tests.conftest\nfrom tests.conftest import *\ntests.conftest.GRACE = 1\n"
        "def pytest_configure(config): config.option.until = time.time() + 2\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest, subprocess\n"
        "def test_first(): pass\n"
        "def test_waits(): subprocess.run(['sleep', '60'])\n"
        "def test_last(): pass\n"
    )
    begin = time.time()
    line = [sys.executable, "-m", "pytest", "--no-skips", str(tmp_path), "--rootdir", str(tmp_path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 2 skipped" in done.stdout
    assert "2 tests were not run to their end, for lack of time" in done.stdout
    assert time.time() - begin < 30
