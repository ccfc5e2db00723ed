"""Random models on every target: a few in each run, hundreds with the marker ``sweep``, and those that once failed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.support.qnn import needs_qnn
from tests.support.tiers import slow_after, slow_unless
from tests.sweep.cases import METHODS, TARGETS, Case
from tests.sweep.execute import FAILED, PASSED, REFUSED, Outcome, execute
from tests.sweep.kept import KEPT, ON_THE_NPU, few_copies
from tests.sweep.sweep import Sweep, Swept
from tests.sweep.worker import Worker

pytestmark = pytest.mark.parity

SEED = 22
"""The seed of every run, so that its cases are the same everywhere."""
ON_THE_CPU = tuple(target for target in TARGETS if target != "android-npu")


def check(swept: Swept, least: int) -> None:
    """Nothing failed, and the sweep did not try nothing."""
    lines = [
        f"{failure.outcome.kind}\n{failure.smallest}\n{failure.outcome.detail}"
        for failure in swept.failures
    ]
    assert swept.failed == 0, "\n\n".join([swept.summary(), *lines])
    assert swept.passed.total() >= least


@pytest.mark.parametrize("target", slow_unless(lambda target: target == "host", ON_THE_CPU))
def test_a_few_cases_pass(target: str) -> None:
    # Core ML's evaluator takes as long for one as the others do for two.
    count = 1 if target == "ios-coreml" else 2
    check(Sweep(target, execute, start=SEED, shrink=0).run(count=count), least=count)


@pytest.mark.slow
@needs_qnn
def test_a_few_cases_pass_on_the_npu() -> None:
    check(Sweep("android-npu", execute, start=SEED, shrink=0).run(count=2), least=2)


@pytest.mark.sweep
@pytest.mark.parametrize("target", ON_THE_CPU)
def test_hundreds_of_cases_pass(target: str) -> None:
    with Worker() as worker:
        check(Sweep(target, worker.run, start=SEED + 1).run(count=300), least=300)


@pytest.mark.sweep
@pytest.mark.slow
@needs_qnn
def test_many_cases_pass_on_the_npu() -> None:
    with Worker() as worker:
        check(Sweep("android-npu", worker.run, start=SEED + 1).run(count=60), least=60)


@pytest.mark.parametrize("case", slow_after(1, KEPT))
def test_what_failed_once_passes(case: Case) -> None:
    outcome = execute(case)
    assert outcome.status == PASSED, outcome.detail


@pytest.mark.slow
@needs_qnn
@pytest.mark.parametrize("case", ON_THE_NPU)
def test_what_failed_on_the_npu_passes(case: Case) -> None:
    outcome = execute(case)
    assert outcome.status == PASSED, outcome.detail


@pytest.mark.sweep
@pytest.mark.slow
@needs_qnn
@pytest.mark.parametrize("case", few_copies())
def test_few_copies_on_the_npu(case: Case) -> None:
    """Far nearer than the bound: rows that broadcast wrongly were 1 % off."""
    outcome = execute(case)
    assert outcome.status == PASSED, outcome.detail
    assert outcome.report is not None
    assert outcome.report["max_relative_loss_error"] <= 1e-3


def sweep(outcome: Callable[[Case], Outcome], count: int = 60, start: int = 1) -> Swept:
    """A sweep over cases that are not compiled."""
    return Sweep("host", outcome, start=start).run(count=count)


def test_a_case_is_one_line_of_json_and_of_python() -> None:
    seen: list[Case] = []

    def note(case: Case) -> Outcome:
        seen.append(case)
        return Outcome(PASSED)

    sweep(note)
    assert len(set(seen)) == 60
    assert {case.method for case in seen} == set(METHODS)
    for case in seen:
        assert "\n" not in case.json()
        assert Case.from_json(case.json()) == case == eval(repr(case))


def test_a_seed_gives_the_same_cases() -> None:
    def drawn(start: int) -> list[Case]:
        seen: list[Case] = []

        def note(case: Case) -> Outcome:
            seen.append(case)
            return Outcome(PASSED)

        sweep(note, count=30, start=start)
        return seen

    assert drawn(3) == drawn(3) != drawn(4)


def test_every_kind_of_failure_is_shrunk_and_the_sweep_goes_on() -> None:
    """Two faults, distinguished by their kinds: each ends at its smallest case, and the rest is still tried."""

    def faulty(case: Case) -> Outcome:
        if case.layers > 1 and case.vocabulary % 8:
            return Outcome(FAILED, kind="rows")
        return Outcome(FAILED, kind="wide") if case.hidden > 64 else Outcome(PASSED)

    swept = Sweep("host", faulty, start=5, method="mebp").run(count=60)
    assert swept.tried == 60 and swept.passed.total() + swept.failed == 60
    (rows,) = (one.smallest for one in swept.failures if one.outcome.kind == "rows")
    (wide,) = (one.smallest for one in swept.failures if one.outcome.kind == "wide")
    assert (rows.architecture, rows.layers, rows.vocabulary, rows.batch) == ("llama", 2, 41, 1)
    assert (wide.architecture, wide.layers, wide.heads) == ("llama", 1, 1) and wide.hidden > 64
    assert len(swept.again) == swept.failed - len(swept.failures)


def test_refused_cases_are_counted_apart() -> None:
    swept = sweep(lambda case: Outcome(REFUSED if case.tied else PASSED, kind="tied"), count=40)
    assert swept.passed.total() == 40 and swept.refused.total() > 10
    assert all(reason.endswith(": tied") for reason in swept.refused)


def test_a_crash_is_a_failing_case_and_the_next_one_runs() -> None:
    with Worker() as worker:
        case = Case(target="ios-coreml", method="quzo")
        assert worker.run(case).status == REFUSED
        assert worker._process is not None
        os.kill(worker._process.pid, signal.SIGSEGV)
        outcome = worker.run(case)
        assert (outcome.status, outcome.kind) == (FAILED, "crash: SIGSEGV")
        assert worker.run(case).status == REFUSED


def test_a_case_that_hangs_is_a_failing_case() -> None:
    with Worker(limit=0.01) as worker:
        assert worker.run(Case()).kind == "hangs"
