"""A state survives whatever cuts its writing short: the run goes on to the bytes of the undisturbed one.

Every call by which the session changes files meets every fault; lost power leaves every image of the disk that
``tests.crash.power`` names.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash import states
from tests.crash.points import PHASES
from tests.crash.states import COLUMNS, NAMES, PAGES, POWER, VALIDATES, Tally
from tests.support.compiled import Compiler

#: These write the same files by the same calls as prge; ``tests.crash.states`` tries them too.
LIKE_PRGE = ("mezo", "fzoo", "spzo")
RUNS = [name for name in NAMES if name not in LIKE_PRGE]


def stride(name: str) -> int:
    """Return 5 to try one case in five: mebp with held-out examples has as many as six others, of the same calls."""
    return 5 if name == "mebp" + VALIDATES else 1


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, compiler: Compiler, tmp_path_factory: Any) -> Any:
    name: str = request.param
    return name, *states.prepare(compiler, name, tmp_path_factory.mktemp("run"))


def check(tally: Tally) -> None:
    assert not tally.problems, "\n".join(tally.problems)
    assert all(lost == 0 for kind, lost in tally.lost.items() if kind != POWER)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_faults_at_every_call(run: Any) -> None:
    name, runs, golden = run
    tally = states.faults(runs, golden, stride(name))
    check(tally)
    assert all(tally.tried[kind] > 10 for kind in COLUMNS if kind != POWER)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_power_is_lost_at_every_moment(run: Any) -> None:
    """With ``PAGES`` also when a log goes on to another page: the disk may have the second of two pages alone."""
    name, runs, golden = run
    if name.endswith(PAGES):
        calls = [(call.operation, call.path) for call in golden.calls[0]]
        assert (
            sum(w == "write" and path.endswith("/trajectory.log") for w, path in calls) == PHASES[0]
        )
    tally = states.losses_of_power(runs, golden, stride(name))
    check(tally)
    assert tally.tried[POWER] > 20
