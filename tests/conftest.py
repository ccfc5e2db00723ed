"""Shared set-up: with ``tests/__init__.py`` this file puts the repository's root on the import path.

``--no-skips`` makes a skipped test a failure unless it is listed below; CI runs with it, so that a missing tool cannot
turn tests off unseen.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

# No test talks to a hub; a test that needs a package registry carries the `network` marker.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# The packed weights of a test run go when it ends.
_packed = tempfile.TemporaryDirectory(prefix="zoexport-packed-")
os.environ["ZOEXPORT_PACKED"] = _packed.name

ALLOWED_SKIPS: dict[str, str] = {}
"""Node id (or the part of it before ``[``) -> why it may be skipped in CI."""

_unexpected: list[str] = []


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


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Called where the reports of all worker processes come together."""
    if report.skipped and not hasattr(report, "wasxfail"):
        _note_skip(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that skips itself has no items, so it is seen here."""
    if report.skipped:
        _note_skip(report.nodeid)


def _note_skip(nodeid: str) -> None:
    if nodeid not in ALLOWED_SKIPS and nodeid.partition("[")[0] not in ALLOWED_SKIPS:
        _unexpected.append(nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if session.config.getoption("--no-skips") and _unexpected and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.getoption("--no-skips") and _unexpected:
        terminalreporter.section("skipped tests that are not listed in tests/conftest.py")
        for nodeid in _unexpected:
            terminalreporter.line(nodeid)
