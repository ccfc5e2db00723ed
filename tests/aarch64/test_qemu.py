"""The session on 64-bit ARM, under qemu, against the same session on this machine.

`make test-aarch64` builds what runs here. It shows that ARM code is right, not how fast it is.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.hosts import environment_tool, run
from tests.support.tiny_models import SENTENCES
from tests.support.transformers_examples import tokenize_file
from zoexport.core import tolerances
from zoexport.core.native import runner_path
from zoexport.data.examples import write_examples
from zoexport.methods.prge import PrgeConfig
from zoexport.session import Session

pytestmark = pytest.mark.aarch64

BUILD = Path(__file__).parents[2] / "build" / "aarch64" / "native"
# As cmake/aarch64-linux-gnu.cmake has it.
QEMU = ("qemu-aarch64", "-cpu", "max,sme=off", "-L", "/usr/aarch64-linux-gnu")
STEPS = 10
PRGE = {"method": "prge", "num_queries": 4}
KINDS: dict[str, dict[str, Any]] = {
    "fp32": {**PRGE, "weights": "fp32"},
    "int4": {**PRGE, "weights": "int4"},
    "int8": {**PRGE, "weights": "int8"},
    "trained int4": {"method": "quzo", "weights": "int4", "eps": 0.5},
    "trained int8": {"method": "quzo", "weights": "int8", "eps": 3},
    "blocks": {"method": "spzo", "train": "full", "split": "head", "perturbations": "1,2"},
}
"""Bundles by what is special about them."""
RATES = {"trained int4": 0.1, "trained int8": 3.0}
MANY = {"trained int4": 100, "trained int8": 100}
"""Steps where integers are trained: rounding decides by the last bit of each."""

INT8_DRIFT = 0.05
"""Relative difference of a step's loss between two free runs with int8 activations. A value at a rounding boundary
falls on either side; a projected gradient divides what follows by 2 eps, so the runs drift apart like two draws of
noise (core/tolerances.py) while the losses stay near the untrained model's."""


class Machine:
    """Runs the programs of one architecture."""

    def __init__(self, name: str, runner: Path, launcher: tuple[str, ...] = ()) -> None:
        self.name, self.runner, self.launcher = name, runner, launcher

    def run(self, program: Path, *arguments: object) -> str:
        line = [*self.launcher, str(program), *map(str, arguments)]
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def verb(self, name: str, *arguments: object) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.run(self.runner, name, *arguments, "--json"))
        return result


class Runs:
    """Bundles, their examples, and a run of each on each machine, made once."""

    def __init__(self, folder: Path, machines: tuple[Machine, ...]) -> None:
        self.folder, self.compiler = folder, Compiler()
        self.machines = {machine.name: machine for machine in machines}
        self.done: dict[tuple[str, str], dict[str, Any]] = {}
        self.examples = folder / "examples.jsonl"

    def bundle(self, kind: str) -> Path:
        bundle = self.compiler.bundle("llama_tied", **KINDS[kind])
        if not self.examples.exists():
            data = self.folder / "data.jsonl"
            data.write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES))
            manifest = json.loads((bundle / "manifest.json").read_text())
            max_length = manifest["settings"]["max_length"]
            write_examples(tokenize_file(data, bundle, max_length).examples, self.examples)
        return bundle

    def train(self, kind: str, machine: str) -> dict[str, Any]:
        """What the runner said of a run from the start."""
        if (kind, machine) not in self.done:
            state = self.folder / f"{kind}-{machine}"
            steps = MANY.get(kind, STEPS)
            self.done[kind, machine] = self.go_on(kind, machine, state, steps)
        return self.done[kind, machine]

    def go_on(self, kind: str, machine: str, state: Path, steps: int) -> dict[str, Any]:
        return self.machines[machine].verb(
            "train", *self.inputs(kind), "--state", state, "--steps", steps,
            "--set", f"learning_rate={RATES.get(kind, 0.05)}", "--set", "lr_scheduler_type=constant",
        )  # fmt: skip

    def evaluate(self, kind: str, machine: str) -> float:
        """The loss of the bundle as compiled."""
        return float(self.machines[machine].verb("eval", *self.inputs(kind))["loss"])

    def inputs(self, kind: str) -> tuple[object, ...]:
        return "--bundle", self.bundle(kind), "--examples", self.examples

    def log_alone(self, kind: str, machine: str, target: Path) -> Path:
        """A copy of a run's state without its snapshots: the log and the bundle have to give the rest."""
        self.train(kind, machine)
        state = self.folder / f"{kind}-{machine}"
        copy = shutil.copytree(state, target, ignore=shutil.ignore_patterns("snapshot-*"))
        assert list(state.glob("snapshot-*")) and not list(copy.glob("snapshot-*"))
        return copy


@pytest.fixture(scope="module")
def arm() -> Machine:
    if shutil.which(QEMU[0]) is None:
        pytest.fail(f"{QEMU[0]} is missing. On Debian and Ubuntu: apt-get install qemu-user")
    return Machine("arm", BUILD / "runtime_ops" / "zoexport-runner", QEMU)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, arm: Machine) -> Runs:
    return Runs(tmp_path_factory.mktemp("aarch64"), (arm, Machine("here", runner_path())))


def finished_slots(bundle: Path, state: Path) -> dict[str, str]:
    """Every slot's bytes on this machine, the pending update applied."""
    with Session.open(bundle) as session:
        session.attach(state, read_only=True)
        return {slot.name: session.read_slot(slot.name).tobytes().hex() for slot in session.slots()}


def replayed_on_arm(arm: Machine, bundle: Path, state: Path) -> dict[str, str]:
    pairs = arm.run(BUILD / "replay_slots", bundle, state).split()
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def test_the_tests_of_cpp_pass(arm: Machine) -> None:
    ctest = environment_tool("ctest")
    run(ctest, "--test-dir", BUILD, "--output-on-failure", "--no-tests=error")


def test_the_noise_is_made_by_neon_and_has_the_golden_bits(arm: Machine) -> None:
    assert "neon: compared, chosen\n" in arm.run(BUILD / "test_noise_variants")
    # Every variant against graphs/golden/rng.json.
    assert " 0 failed" in arm.run(BUILD / "test_rng")


@pytest.mark.parametrize(
    ("processor", "chosen", "other"),
    [
        (QEMU[2], "neon_bf16", "neon: compared"),
        ("cortex-a72", "neon", "neon_bf16: does not run here"),
    ],
    ids=["bf16", "plain"],
)
def test_the_products_are_computed_by_neon(processor: str, chosen: str, other: str) -> None:
    """The fastest variant that a processor has: qemu's largest has bf16, a Cortex-A72 has not."""
    emulated = Machine("arm", BUILD, (*QEMU[:2], processor, *QEMU[3:]))
    for test in ("test_products", "test_sparse"):
        lines = emulated.run(BUILD / test).splitlines()
        assert f"{chosen}: compared, chosen" in lines and other in lines
        assert lines[-1].endswith(" 0 failed")


@pytest.mark.parametrize(("kind", "bound"), [("fp32", 1e-4), ("blocks", 1e-4)])
def test_fp32_losses_are_those_of_this_machine(runs: Runs, kind: str, bound: float) -> None:
    here, there = runs.train(kind, "here")["losses"], runs.train(kind, "arm")["losses"]
    assert len(here) == STEPS and len(set(here)) == STEPS
    assert there == pytest.approx(here, rel=bound)


@pytest.mark.parametrize("kind", ["trained int4", "trained int8"])
def test_losses_over_equal_integers_are_those_of_this_machine(
    runs: Runs, tmp_path: Path, kind: str
) -> None:
    """A run of here goes on there, from the integers that its log gives."""
    here = runs.train(kind, "here")["losses"]
    log = runs.log_alone(kind, "here", tmp_path / "state")
    there = runs.go_on(kind, "arm", log, len(here) + 1)["losses"]
    whole = runs.go_on(kind, "here", runs.log_alone(kind, "here", tmp_path / "here"), len(here) + 1)
    assert there[:-1] == here and there[-1] == pytest.approx(whole["losses"][-1], rel=1e-3)


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_int8_activations_are_near_this_machine(runs: Runs, weights: str) -> None:
    bound = tolerances.bounds(PrgeConfig(activations="int8"))[tolerances.LOSS]
    assert runs.evaluate(weights, "arm") == pytest.approx(runs.evaluate(weights, "here"), rel=bound)
    here, there = runs.train(weights, "here")["losses"], runs.train(weights, "arm")["losses"]
    # The first step compares the same weights and the same noise.
    assert there[0] == pytest.approx(here[0], rel=bound)
    assert len(there) == STEPS and all(map(math.isfinite, there))
    assert there == pytest.approx(here, rel=INT8_DRIFT)


@pytest.mark.parametrize(
    ("trained_on", "kind"),
    # A hundred steps take minutes under qemu.
    [*(("here", kind) for kind in KINDS), *(("arm", kind) for kind in KINDS if kind not in MANY)],
)
def test_a_log_gives_the_same_bytes_on_both(
    runs: Runs, arm: Machine, tmp_path: Path, kind: str, trained_on: str
) -> None:
    log = runs.log_alone(kind, trained_on, tmp_path / "state")
    bundle = runs.bundle(kind)
    here = finished_slots(bundle, log)
    assert replayed_on_arm(arm, bundle, log) == here
    # And what the machine that trained has itself, from its snapshot and the pending update.
    assert finished_slots(bundle, runs.folder / f"{kind}-{trained_on}") == here
    with Session.open(bundle) as untrained:
        slots = untrained.slots()
        moved = {
            slot.name
            for slot in slots
            if untrained.read_slot(slot.name).tobytes().hex() != here[slot.name]
        }
    assert moved == {slot.name for slot in slots if slot.role == "trainable"} != set()


def test_a_run_goes_on_there(runs: Runs, tmp_path: Path) -> None:
    state = runs.log_alone("fp32", "here", tmp_path / "there")
    there = runs.go_on("fp32", "arm", state, STEPS + 2)["losses"]
    whole = runs.go_on("fp32", "here", tmp_path / "whole", STEPS + 2)["losses"]
    assert there[:STEPS] == runs.train("fp32", "here")["losses"]
    assert there[STEPS:] == pytest.approx(whole[STEPS:], rel=1e-4)
