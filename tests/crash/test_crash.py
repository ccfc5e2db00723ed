"""A state survives whatever cuts its writing short: the run goes on to the bytes of the undisturbed one.

Every call by which the session changes files meets every fault; lost power leaves every image of the disk that
``tests.crash.power`` names. ``make test`` takes a part of them, for one zeroth-order method and one first-order one.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash import states
from tests.crash.points import PHASES
from tests.crash.states import COLUMNS, NAMES, PAGES, POWER, VALIDATES, Tally
from tests.support.compiled import Compiler

QUICK = ("prge", "mebp", "prge" + VALIDATES, "mebp" + VALIDATES)
#: These write the same files by the same calls as prge; ``tests.crash.states`` tries them too.
LIKE_PRGE = ("prge in layers", "mezo", "fzoo", "spzo")
#: Of the cases of a quick method, one in so many.
STRIDE = 9


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, compiler: Compiler, tmp_path_factory: Any) -> Any:
    name: str = request.param
    return name, *states.prepare(compiler, name, tmp_path_factory.mktemp("run"))


def check(tally: Tally) -> None:
    assert not tally.problems, "\n".join(tally.problems)
    assert all(lost == 0 for kind, lost in tally.lost.items() if kind != POWER)


@pytest.mark.slow
@pytest.mark.parametrize("run", QUICK, indirect=True)
def test_faults_at_some_calls(run: Any) -> None:
    name, runs, golden = run
    check(states.faults(runs, golden, STRIDE, QUICK.index(name)))


@pytest.mark.slow
@pytest.mark.parametrize("run", [n for n in NAMES if n not in LIKE_PRGE], indirect=True)
def test_faults_at_every_call(run: Any) -> None:
    tally = states.faults(*run[1:])
    check(tally)
    assert all(tally.tried[kind] > 10 for kind in COLUMNS if kind != POWER)


@pytest.mark.slow
@pytest.mark.parametrize("run", QUICK, indirect=True)
def test_power_is_lost_at_some_moments(run: Any) -> None:
    name, runs, golden = run
    check(states.losses_of_power(runs, golden, STRIDE, QUICK.index(name)))


@pytest.mark.slow
@pytest.mark.parametrize("run", [name + PAGES for name in QUICK[:2]], indirect=True)
def test_power_is_lost_where_a_log_goes_on_to_another_page(run: Any) -> None:
    """Of two pages of a log that were not synced, the disk may have the second one alone."""
    _, runs, golden = run
    writes = [
        number
        for number, call in enumerate(golden.calls[0], 1)
        if call.operation == "write" and call.path.endswith("/trajectory.log")
    ]
    assert len(writes) == PHASES[0]
    check(states.losses_of_power(runs, golden, until=writes[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("run", NAMES, indirect=True)
def test_power_is_lost_at_every_moment(run: Any) -> None:
    tally = states.losses_of_power(*run[1:])
    check(tally)
    assert tally.tried[POWER] > 20
