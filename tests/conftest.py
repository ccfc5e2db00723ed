"""Shared set-up: with ``tests/__init__.py`` this file puts the repository's root on the import path.

``--no-skips`` makes a skipped test a failure unless it is listed below; CI runs with it, so that a missing tool cannot
turn tests off unseen. ``--newest-first --until TIME`` runs what the newest commits touch, and as much of the rest as
there is time for: no test begins after TIME, and a test that still runs ``GRACE`` seconds later is ended.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.compiled import Compiler

# No test talks to a hub; a test that needs a package registry carries the `network` marker.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Vulkan's validation layer watches every process that a test starts; what it finds ends the process.
os.environ.setdefault("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
os.environ.setdefault(
    "VK_LAYER_SETTINGS_PATH", str(Path(__file__).parent / "support" / "vk_layer_settings.txt")
)

# A shell starts background jobs with SIGINT ignored, which their children inherit; tests of Ctrl-C could not send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The packed weights of a test run go when it ends.
_packed = tempfile.TemporaryDirectory(prefix="zoexport-packed-")
os.environ["ZOEXPORT_SHADERS"] = _packed.name

ALLOWED_SKIPS: dict[str, str] = {}
"""Node id (or the part of it before ``[``) -> why it may be skipped in CI."""

OUT_OF_TIME = "out of time (--until)"
GRACE = 360
"""Seconds after --until at which a test that began before it is ended."""

_unexpected: list[str] = []
_out_of_time: list[str] = []


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    """Compiles each tiny bundle once."""
    from tests.support.compiled import Compiler

    return Compiler()


@pytest.fixture(scope="session")
def host_case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the hosts in other languages are compared with; compiled once, and only where a test asks for it."""
    from tests.support.hosts import make_case

    return make_case(tmp_path_factory.mktemp("hosts"))


@pytest.fixture(scope="session")
def golden_case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundles and states of graphs/golden/trajectories.json."""
    from tests.support.trajectories import make_case

    return make_case(tmp_path_factory.mktemp("trajectories"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips", action="store_true", help="fail when a test that is not listed is skipped"
    )
    parser.addoption(
        "--newest-first", action="store_true", help="begin with what the newest commits touch"
    )
    parser.addoption(
        "--until", type=float, metavar="TIME", help="begin no test after it (seconds since 1970)"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--newest-first"):
        from tests.support.order import newest_first, turned

        tests: dict[Path, list[pytest.Item]] = {}
        for item in items:
            tests.setdefault(item.path, []).append(item)
        items[:] = [item for path in newest_first(tests) for item in turned(tests[path])]


@pytest.hookimpl(
    wrapper=True, trylast=True
)  # within those of pytest's log, which its teardown needs
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    until = item.config.getoption("--until")
    if until is not None and time.time() > until:
        pytest.skip(OUT_OF_TIME)
    yield from _ended_in_time(item)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    yield from _ended_in_time(item)


def _ended_in_time(item: pytest.Item) -> Generator[None]:
    """Skip what the hooks run if it does not end in time, also where it waits for another process."""
    until = item.config.getoption("--until")
    if until is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.skip(OUT_OF_TIME))
    signal.setitimer(signal.ITIMER_REAL, max(1e-3, until + GRACE - time.time()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Called where the reports of all worker processes come together."""
    if report.skipped and not hasattr(report, "wasxfail"):
        _note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that skips itself has no items, so it is seen here."""
    if report.skipped:
        _note_skip(report)


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    nodeid = report.nodeid
    if isinstance(report.longrepr, tuple) and OUT_OF_TIME in report.longrepr[2]:
        _out_of_time.append(nodeid)
    elif nodeid not in ALLOWED_SKIPS and nodeid.partition("[")[0] not in ALLOWED_SKIPS:
        _unexpected.append(nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if session.config.getoption("--no-skips") and _unexpected and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if _out_of_time:
        files = sorted({nodeid.partition("::")[0] for nodeid in _out_of_time})
        terminalreporter.section(
            f"{len(_out_of_time)} tests were not run to their end, for lack of time"
        )
        for file in files:
            terminalreporter.line(file)
    if config.getoption("--no-skips") and _unexpected:
        terminalreporter.section("skipped tests that are not listed in tests/conftest.py")
        for nodeid in _unexpected:
            terminalreporter.line(nodeid)
