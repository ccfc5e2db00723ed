"""Random models on every target: a few in each run, hundreds with the marker ``sweep``, and those that once failed."""

from __future__ import annotations

import pytest

from tests.support.qnn import needs_qnn
from tests.support.tiers import slow_after, slow_unless
from tests.sweep.cases import TARGETS, Case
from tests.sweep.execute import PASSED, execute
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
