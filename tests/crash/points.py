"""Runs of zoexport-runner that are cut short at one call, by the preloaded ``shim.cpp``."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from zoexport.core import native

ROOT = Path(__file__).parents[2]
SHIM = ROOT / "build" / "libzoexport_crash_shim.so"

#: Steps in the state after each process of a run that may be cut short; the second resumes what the first has left.
PHASES = (3, 7)
#: Steps to which every run goes on. These are counted from where the run starts.
END = 9
#: What the system stores of a file at once.
PAGE = 4096
#: What a call may do instead of its work. Those of the second row end the process.
FAULTS = ("short", "EINTR", "EIO", "ENOSPC", "full", "kill", "torn")
KILLS = ("kill", "torn")
#: A process goes on after these as if nothing had been.
SURVIVED = ("short", "EINTR")
#: What some faults are faults of; the others can meet any call.
_CAN_MEET = {
    "short": ("write",),
    "torn": ("write",),
    "EINTR": ("write", "truncate", "fallocate", "sync"),
    "ENOSPC": ("write", "fallocate", "create", "mkdir", "rename"),
    "full": ("write", "fallocate", "create", "mkdir", "rename"),
}
#: Bytes of a log before its records.
HEADER = 64


@dataclasses.dataclass(frozen=True)
class Call:
    """One call that changed files: what the shim wrote down.

    Attributes:
        operation: create, write, truncate, fallocate, sync, rename, unlink or mkdir.
        path, second: absolute; the new name of a rename is the second.
        offset, size: bytes of a write or of reserved room, and the size after truncating.
    """

    number: int
    operation: str
    path: str
    second: str
    offset: int
    size: int
    written: bytes


@dataclasses.dataclass(frozen=True)
class Ended:
    """A process that ended.

    Attributes:
        first, steps: the numbers of steps after its first and its last one, as its lines said; 0 where it said none.
    """

    code: int
    errors: str
    first: int
    steps: int


@dataclasses.dataclass
class Runs:
    """Runs over one bundle.

    Attributes:
        bundle, examples: what is trained on. folder: where runs may write.
        start: steps in the state before the first process that may be cut short.
        validates: whether the examples are evaluated on too, after each step.
        loss: that is trained with; of dpo the scores of the reference model are kept before the first step.
    """

    bundle: Path
    examples: Path
    folder: Path
    start: int = 0
    validates: bool = False
    loss: str = "full"

    @property
    def phases(self) -> tuple[int, ...]:
        """Steps in the state after each of these processes."""
        return tuple(self.start + steps for steps in PHASES)

    @property
    def end(self) -> int:
        """Steps to which every run goes on."""
        return self.start + END

    def state(self, name: str) -> Path:
        """A state's folder; it alone is watched."""
        return self.folder / name / "state"

    def train(
        self,
        state: Path,
        steps: int,
        *,
        at: int = 0,
        fault: str = "",
        trace: Path | None = None,
        boot: Path | None = None,
    ) -> Ended:
        """Train to ``steps`` in total; the call with the number ``at`` meets ``fault``."""
        state.parent.mkdir(parents=True, exist_ok=True)
        given = {
            "LD_PRELOAD": SHIM,
            "ZO_CRASH_ROOT": state.parent,
            "ZO_CRASH_AT": at or "",
            "ZO_CRASH_FAULT": fault,
            "ZO_CRASH_TRACE": trace or "",
            "ZO_CRASH_BOOT": boot or "",
        }
        line = [
            *(str(native.runner_path()), "train", "--bundle", str(self.bundle)),
            *("--examples", str(self.examples), "--state", str(state), "--steps", str(steps)),
            # Of a constant rate, which does not depend on how many steps there will be.
            *("--threads", "1", "--skip-hashes", "--set", "lr_scheduler_type=constant"),
            *("--set", f"loss={self.loss}"),
        ]
        if self.validates:
            line += ["--eval-examples", str(self.examples), "--eval-every", "1"]
        done = subprocess.run(
            line,
            env={**os.environ, **{name: str(value) for name, value in given.items()}},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        said = [
            text for text in done.stderr.splitlines() if text.startswith("step ") and "/" in text
        ]
        numbers = [int(text.split()[1].partition("/")[0]) for text in said] or [0]
        return Ended(done.returncode, done.stderr, numbers[0], numbers[-1])

    def undisturbed(self) -> Golden:
        """The run that nothing cuts short."""
        state = self.state("golden")
        if self.start:
            self.train(state, self.start)
        calls, before = [], []
        for number, steps in enumerate((*self.phases, self.end)):
            trace = self.folder / f"trace.{number}"
            before.append(self.folder / f"before.{number}")
            if state.exists():
                shutil.copytree(state, before[-1])
            ended = self.train(state, steps, trace=trace)
            assert ended.code == 0, ended.errors
            assert ended.steps == steps
            calls.append(read_trace(trace))
        golden = Golden(
            state,
            (state / "trajectory.log").read_bytes(),
            sorted(state.glob("snapshot-*"), key=lambda path: int(path.stem.partition("-")[2])),
            self.end,
            before,
            calls[: len(PHASES)],
            [],
        )
        for phase, steps in enumerate(self.phases):
            trace = self.folder / f"trace.copy.{phase}"
            self.train(self.as_before(golden, phase), steps, trace=trace)
            golden.points.append(read_trace(trace))
        return golden

    def as_before(self, golden: Golden, phase: int) -> Path:
        """A state's folder as a process of the undisturbed run found it."""
        state = self.state("cut")
        shutil.rmtree(state.parent, ignore_errors=True)
        if golden.before[phase].exists():
            shutil.copytree(golden.before[phase], state)
        return state


@dataclasses.dataclass(frozen=True)
class Golden:
    """The undisturbed run.

    Attributes:
        state: its folder. log: the bytes of its log. snapshots: its snapshots, the last one last. end: its steps.
        before: for each process, a copy of the state's folder as it found it; absent before the first.
        calls: of each process.
        points: of each process where it goes on in such a copy, which first-order runs do by other calls.
    """

    state: Path
    log: bytes
    snapshots: list[Path]
    end: int
    before: list[Path]
    calls: list[list[Call]]
    points: list[list[Call]]

    @property
    def record(self) -> int:
        """Bytes of a record."""
        return (len(self.log) - HEADER) // self.end

    def is_reached(self, state: Path) -> bool:
        """Whether a finished state has the same log and last snapshot, to the last byte.

        Of a run that validates also the same evaluations, and the snapshot of the best one; of pairs also the scores
        of the reference model.
        """
        same = [self.state / "trajectory.log", self.snapshots[-1]]
        same += self.state.glob("reference.json")
        evaluations = self.state / "evaluations.json"
        if evaluations.exists():
            same.append(evaluations)
            losses = {
                e["step"]: e["loss"] for e in json.loads(evaluations.read_text())["evaluations"]
            }
            best = min((step for step in losses if step), key=lambda step: losses[step])
            # Of a zeroth-order run the update of its last step is pending.
            same += [
                s for s in self.snapshots if s.stem in (f"snapshot-{best}", f"snapshot-{best - 1}")
            ]
            assert len(same) > 3 or best == self.end
        return all(
            (state / file.name).exists() and (state / file.name).read_bytes() == file.read_bytes()
            for file in same
        )

    def steps(self, state: Path) -> int:
        """Whole records of a state's log.

        Raises:
            AssertionError: they are not the first ones of this run.
        """
        log = state / "trajectory.log"
        if not log.exists() or not (found := log.read_bytes()):
            return 0
        whole = max(0, len(found) - HEADER) // self.record
        same = found[: HEADER + whole * self.record]
        # What is behind the last whole record was torn; a torn record is no whole one of other bytes.
        while whole and same != self.log[: len(same)]:
            whole -= 1
            same = found[: HEADER + whole * self.record]
        assert same == self.log[: len(same)], "a log that does not begin like the golden one"
        return whole


def read_trace(path: Path) -> list[Call]:
    """What the shim wrote down."""
    bytes_, at, calls = path.read_bytes(), 0, []
    while at < len(bytes_):
        end = bytes_.index(b"\n", at)
        number, operation, name, second, offset, size = bytes_[at:end].decode().split("|")
        at = end + 1
        written = bytes_[at : at + int(size)] if operation == "write" else b""
        at += len(written)
        calls.append(Call(int(number), operation, name, second, int(offset), int(size), written))
    return calls


def cases(golden: Golden, faults: tuple[str, ...]) -> Iterator[tuple[int, Call, str]]:
    """Every process, call and fault that can differ from another."""
    for phase, calls in enumerate(golden.points):
        for call in calls:
            for fault in faults:
                if call.operation in _CAN_MEET.get(fault, (call.operation,)) and call.size != 1:
                    yield phase, call, fault


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one fault led to.

    Attributes:
        problems: what is wrong after it, and after going on; nothing where all that is promised holds.
        lost: steps that were reported and had to be made again.
    """

    problems: list[str]
    lost: int


def outcome(runs: Runs, golden: Golden, phase: int, call: Call, fault: str) -> Outcome:
    """Let one call meet one fault, and go on from what is left."""
    state = runs.as_before(golden, phase)
    ended = runs.train(state, runs.phases[phase], at=call.number, fault=fault)
    found = []
    if fault in KILLS:
        if ended.code != -signal.SIGKILL:
            found.append(f"was to be killed, ended with {ended.code}")
    elif ended.code < 0:
        found.append(f"crashed by signal {-ended.code}")
    elif fault in SURVIVED and ended.code != 0:
        found.append(f"gave up: {ended.errors.strip()}")
    elif ended.code != 0 and sum(s.startswith("error: ") for s in ended.errors.splitlines()) != 1:
        found.append(f"not one message: {ended.errors.strip()}")
    try:
        golden.steps(state)
    except AssertionError as error:
        return Outcome([*found, str(error)], 0)
    before = (runs.start, *runs.phases)[phase]
    reported = max(before, ended.steps) if ended.code != 0 else runs.phases[phase]
    problems, kept = resumed(runs, golden, state)
    if kept is not None and kept < reported:
        found.append(f"{reported} steps were reported, and it goes on from {kept}")
    return Outcome([*found, *problems], max(0, reported - kept) if kept is not None else 0)


def resumed(
    runs: Runs, golden: Golden, state: Path, boot: Path | None = None
) -> tuple[list[str], int | None]:
    """What is wrong after going on from a state, and from how many steps that went on."""
    ended = runs.train(state, runs.end, boot=boot)
    if ended.code != 0:
        return [f"cannot go on: {ended.errors.strip()}"], None
    kept = ended.first - 1
    if not golden.is_reached(state):
        return ["ends in other bytes"], kept
    leftovers = [path.name for path in state.iterdir() if path.suffix == ".tmp"]
    return ([f"leaves {leftovers}"] if leftovers else []), kept


def write_examples(path: Path, count: int = 6, candidates: int = 1) -> Path:
    """Examples of unequal lengths, each of so many candidates."""

    def candidate(number: int) -> dict[str, list[int]]:
        tokens = [(7 * number + 3 * place) % 50 + 1 for place in range(5 + number)]
        return {"tokens": tokens, "labels": [*tokens[1:], 2]}

    lines = []
    for number in range(count):
        made = [candidate(number + more) for more in range(candidates)]
        lines.append(json.dumps({"candidates": made}) + "\n")
    path.write_text("".join(lines))
    return path
