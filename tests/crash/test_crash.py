"""A state survives whatever cuts its writing short: the run goes on to the bytes of the undisturbed one.

Every call by which the session changes files meets every fault; lost power leaves every image of the disk that
``tests.crash.power`` names. ``make test`` takes a part of them, for one zeroth-order method and one first-order one.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.crash.points import (
    FAULTS,
    PHASES,
    Golden,
    Runs,
    cases,
    resumed,
    violations_at,
    write_examples,
)
from tests.crash.power import Disk, Image
from tests.support.compiled import Compiler

METHODS: dict[str, dict[str, Any]] = {
    "prge": {"queries": 2},
    "prge-split": {"queries": 2, "split": "layers"},
    "mezo": {"queries": 2},
    "mebp": {},
    "senszoq": {"queries": 2},
    "quzo": {"queries": 2},
    "spzo": {},
}
QUICK = ("prge", "mebp")
#: Of the cases of a quick method, one in so many.
STRIDE = 9


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, compiler: Compiler, tmp_path_factory: Any) -> Any:
    name: str = request.param
    folder = tmp_path_factory.mktemp(name)
    settings: Mapping[str, Any] = METHODS[name]
    bundle = compiler.bundle("llama_tied", name.partition("-")[0], weights="int4", **settings)
    runs = Runs(bundle, write_examples(folder / "examples.jsonl"), folder)
    return name, runs, runs.undisturbed()


def faults_of(runs: Runs, golden: Golden, stride: int, first: int) -> list[str]:
    found = []
    for phase, call, fault in [*cases(golden, FAULTS)][first::stride]:
        for problem in violations_at(runs, golden, phase, call, fault):
            found.append(
                f"process {phase}, call {call.number} ({call.operation} {Path(call.path).name}), "
                f"{fault}: {problem}"
            )
    return found


def losses_of_power(runs: Runs, golden: Golden, stride: int, first: int) -> tuple[int, list[str]]:
    calls = [call for process in golden.calls for call in process]
    disk = Disk(calls, golden.state.parent)
    saved = len(Disk(golden.calls[0], golden.state.parent).events)
    boot = runs.folder / "boot"
    boot.write_text("00000000-0000-4000-8000-000000000000\n")
    mapped = {path.name: path.read_bytes() for path in golden.state.glob("work.bin")}
    seen: dict[Image, tuple[int, list[str]]] = {}
    found = []
    moments = [(m, image) for m in range(len(disk.events) + 1) for image in disk.images(m)]
    for moment, image in moments[first::stride]:
        if image not in seen:
            state = runs.state("dark")
            shutil.rmtree(state.parent, ignore_errors=True)
            image.write(state.parent, mapped)
            seen[image] = golden.steps(state), resumed(runs, golden, state, boot)
            found += [f"moment {moment}: {problem}" for problem in seen[image][1]]
        kept, _ = seen[image]
        # The first process had ended and said so: what it did is not lost.
        if moment >= saved and kept < PHASES[0]:
            found.append(f"moment {moment}: {PHASES[0]} steps were saved, {kept} are in the log")
    return len(seen), found


@pytest.mark.parametrize("run", QUICK, indirect=True)
def test_faults_at_some_calls(run: Any) -> None:
    name, runs, golden = run
    found = faults_of(runs, golden, STRIDE, QUICK.index(name))
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("run", METHODS, indirect=True)
def test_faults_at_every_call(run: Any) -> None:
    _, runs, golden = run
    found = faults_of(runs, golden, 1, 0)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("run", QUICK, indirect=True)
def test_power_is_lost_at_some_moments(run: Any) -> None:
    name, runs, golden = run
    _, found = losses_of_power(runs, golden, STRIDE, QUICK.index(name))
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("run", METHODS, indirect=True)
def test_power_is_lost_at_every_moment(run: Any) -> None:
    _, runs, golden = run
    images, found = losses_of_power(runs, golden, 1, 0)
    assert not found, "\n".join(found)
    assert images > 20
