"""What the command line prints: results, progress, and what libraries say in between."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zoexport.cli.console import output_of_libraries, size, table
from zoexport.run.progress import COMPILE, Phases, Steps, TimeLeft
from zoexport.session import StepProgress


def test_what_libraries_print_goes_to_standard_error() -> None:
    probe = (
        "import ctypes, os\n"
        "from zoexport.cli.console import emit, output_of_libraries\n"
        "with output_of_libraries():\n"
        "    print('from Python')\n"
        "    os.write(1, b'from C\\n')\n"
        "    os.system('echo from a child')\n"
        "emit({'x': float('nan'), 'y': [1.5]}, [], as_json=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.stdout == '{"x": null, "y": [1.5]}\n'
    assert sorted(done.stderr.splitlines()) == ["from C", "from Python", "from a child"]


def test_standard_output_comes_back_after_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with output_of_libraries():
            sys.stdout.write("noise\n")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    sys.stdout.write("result\n")
    assert capfd.readouterr() == ("result\n", "noise\n")


def test_phases_are_plain_lines_off_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with Phases("compile", as_json=False) as phases:
        for share in (None, 0.5, 1.0):
            phases("lowering", share)
        phases("hashing", None)
    assert capfd.readouterr() == ("", "compile: lowering\ncompile: hashing\n")
    with Phases("compile", as_json=True) as phases:
        phases("lowering", None)
    assert capfd.readouterr() == ("", "")


def test_time_left_follows_the_shares_of_phases() -> None:
    now = [0.0]
    ways = [
        [("read", 0.0), ("one", 0.2), ("write", 0.5), ("one", 0.6)],
        [("read", 0.0), ("other", 0.1), ("write", 0.9)],
    ]
    left = TimeLeft(ways, lambda: now[0])

    def after(seconds: float, phase: str, done: float | None = None) -> float | None:
        now[0] = seconds
        left.at(phase, done)
        return left.seconds()

    # Which way it goes is not known yet.
    assert after(1, "read") is None
    # The first way: of ten seconds two are over.
    assert after(2, "one") == 8
    # What no way knows tells nothing, and time passes.
    assert after(3, "unknown") == 7
    # A quarter of the phase took a second: three more, and then the half that follows.
    assert after(3, "one", 0.25) == pytest.approx(3 + 0.5 * 10)
    assert after(6, "write") == pytest.approx(6)
    # A phase that comes twice.
    assert after(9, "one") == pytest.approx(6)
    assert after(20, "one") == 0


def test_a_guess_at_the_beginning_is_not_shown() -> None:
    now = [0.0]
    left = TimeLeft([[("read", 0.0), ("soon", 0.1), ("then", 0.2)]], lambda: now[0])
    now[0] = 10.0
    left.at("soon", None)
    assert left.seconds() is None
    left.at("then", None)
    assert left.seconds() == 40


def test_the_shares_of_a_compile_ascend() -> None:
    for way in COMPILE:
        shares = [share for _, share in way]
        assert shares == sorted(shares) and shares[0] == 0 and shares[-1] < 1


def test_a_terminal_shows_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Phases("compile", as_json=False, ways=[[("read", 0.0), ("write", 0.5)]]) as phases:
        phases("write", None)
        assert phases._bar is not None
        phases._bar.refresh()
    assert "about 0:00:00 left" in capfd.readouterr().err


def _step(step: int, total: int) -> StepProgress:
    return StepProgress(step, total, 0.5, 1e-3, 0.25, 300_000_000, 157_000_000)


def test_steps_show_loss_rate_memory_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("zoexport.run.progress.time.monotonic", lambda: now[0])
    with Steps("train", as_json=False) as steps:
        for step in range(31, 101):
            now[0] += 2.5
            steps(_step(step, 100))
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "train: step 31/100  loss 0.5000  4.00 steps/s  157 MB  0:00:17 left"
    assert lines[-1] == "train: step 100/100  loss 0.5000  0.41 steps/s  157 MB  0:00:00 left"
    assert len(lines) == 1 + 2 + 1, "one a minute, and the last"


def test_a_terminal_gets_a_live_bar() -> None:
    pty = pytest.importorskip("pty", reason="needs a POSIX terminal")
    leader, follower = pty.openpty()
    probe = (
        "from tests.unit.cli.test_output import _step\n"
        "from zoexport.run.progress import Steps\n"
        "with Steps('train', as_json=True) as steps:\n"
        "    for step in (1, 2): steps(_step(step, 2))\n"
    )
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-c", probe],
        stderr=follower,
        env=environment,
        cwd=Path(__file__).parents[3],
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            block = os.read(leader, 4096)
        except OSError:  # how Linux says that the last writer has closed
            break
        if not block:
            break
        shown += block
    assert process.wait() == 0
    text = shown.decode()
    assert "2/2" in text
    assert "loss 0.5000" in text
    assert "157 MB" in text
    assert "\x1b[" in text


def test_tables_and_sizes() -> None:
    assert table([("a", "one"), ("long", 2)]) == ["  a     one", "  long  2"]
    assert table([]) == []
    assert [size(n) for n in (12, 1_200, 84_100_000, 2.5e9)] == [
        "12 bytes",
        "1.2 kB",
        "84.1 MB",
        "2.50 GB",
    ]
