"""A GPU that is lost, hangs or has no memory left: one message, and a state that goes on as if nothing had been.

``tests/cpp/vulkan_faults.cpp`` stands before Vulkan's library. It ends the process with a line of its own where a
driver might hang, or would read what has been given back.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import engine_parity
from tests.support.compiled import Compiler
from tests.support.sessions import write_examples
from tests.support.tiers import slow_after
from tests.support.verbs import verb
from tests.support.vulkan import read_counts, with_counts, with_fault
from zoexport.core.native import library_path, runner_path

pytestmark = pytest.mark.parity
STEPS = 4
LOST, HANGS = "VK_ERROR_DEVICE_LOST", "VK_TIMEOUT"
NO_MEMORY, NO_HOST_MEMORY = "VK_ERROR_OUT_OF_DEVICE_MEMORY", "VK_ERROR_OUT_OF_HOST_MEMORY"
SAYS = {
    LOST: "the device was lost",
    HANGS: "no end within the time allowed",
    NO_MEMORY: "out of device memory",
    NO_HOST_MEMORY: "out of host memory",
    "VK_ERROR_UNKNOWN": "an error that Vulkan does not name",
}
#: Where in a run of ``STEPS`` steps, as a share of its calls of that name.
FIRST, MIDDLE, LAST = 0.0, 0.4, 1.0
FAULTS: list[tuple[str, str, float]] = [
    ("vkQueueSubmit", LOST, MIDDLE),
    ("vkWaitForFences", LOST, LAST),
    ("vkWaitForFences", HANGS, MIDDLE),
    ("vkAllocateMemory", NO_MEMORY, FIRST),
    ("vkQueueSubmit", NO_MEMORY, MIDDLE),
    ("vkCreateComputePipelines", "VK_ERROR_UNKNOWN", LAST),
    ("vkQueueSubmit", LOST, FIRST),
    ("vkQueueSubmit", LOST, LAST),
    ("vkWaitForFences", LOST, FIRST),
    ("vkWaitForFences", LOST, MIDDLE),
    ("vkWaitForFences", HANGS, LAST),
    ("vkWaitForFences", NO_HOST_MEMORY, MIDDLE),
    ("vkAllocateMemory", NO_MEMORY, LAST),
    ("vkQueueSubmit", NO_MEMORY, FIRST),
    ("vkCreateComputePipelines", NO_MEMORY, FIRST),
    ("vkCreateDevice", NO_MEMORY, FIRST),
]


@dataclasses.dataclass(frozen=True)
class Runs:
    """Runs of ``STEPS`` steps over one bundle.

    Attributes:
        bundle, examples: what is trained on. folder: where runs write.
        counts: how often the undisturbed run made each call that can fail.
        whole: the files of its state.
    """

    bundle: Path
    examples: Path
    folder: Path
    counts: dict[str, int]
    whole: dict[str, bytes]

    def number(self, call: str, share: float) -> int:
        return 1 + round(share * (self.counts[call] - 1))


def ran(
    runs_in: tuple[Path, Path], verb: str, state: Path, *arguments: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    bundle, examples = runs_in
    line = [runner_path(), verb, "--bundle", bundle, "--examples", examples, "--state", state]
    return subprocess.run(
        [*map(str, line), *map(str, arguments), "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
    )


def trained(
    runs_in: tuple[Path, Path], state: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """With times of shaders, so that the calls that ask for them are made too, and no other engine instead."""
    named = ("--engine", "vulkan")
    return ran(runs_in, "train", state, "--steps", STEPS, "--timings", *named, **environment)


def files_of(state: Path) -> dict[str, bytes]:
    """What is kept of a run; a work file is this boot's, and the lock names a process."""
    paths = [path for path in state.iterdir() if path.name not in ("lock", "work.bin")]
    return {path.name: path.read_bytes() for path in paths}


def made(compiler: Compiler, folder: Path, method: str) -> Runs:
    settings: dict[str, Any] = (
        {"lora__target_modules": "all-linear"} if method == "mebp" else {"num_queries": 2}
    )
    bundle = compiler.bundle("llama_tied", method, "android-gpu", weights="int4", **settings)
    rows = [([(tokens[:-1], tokens[1:])], 0) for tokens in engine_parity.EXAMPLES]
    examples = write_examples(folder / "examples.jsonl", rows)
    done = trained((bundle, examples), folder / "whole", **with_counts(folder / "counts"))
    assert done.returncode == 0, done.stderr
    return Runs(
        bundle, examples, folder, read_counts(folder / "counts"), files_of(folder / "whole")
    )


@pytest.fixture(scope="module")
def mebp(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return made(compiler, tmp_path_factory.mktemp("mebp"), "mebp")


@pytest.fixture(scope="module")
def prge(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return made(compiler, tmp_path_factory.mktemp("prge"), "prge")


def message(done: subprocess.CompletedProcess[str], call: str, result: str) -> dict[str, str]:
    """The one message of a process that failed: what happened, and what to do."""
    assert done.returncode == 1, done.stderr
    assert "vulkan_faults" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1
    error: dict[str, str] = json.loads(done.stdout.splitlines()[-1])["error"]
    assert SAYS[result] in error["found"]
    # After a wait that failed for lack of memory nobody knows when the device is done.
    memory = result in (NO_MEMORY, NO_HOST_MEMORY) and call != "vkWaitForFences"
    assert ("Close other apps" if memory else "executorch") in error["fix"]
    return error


def fails_and_goes_on(runs: Runs, tmp_path: Path, call: str, result: str, number: int) -> int:
    """The steps that the state has after the failure."""
    with_it = (runs.bundle, runs.examples)
    state = tmp_path / "state"
    done = trained(with_it, state, **with_fault(call, number, result))
    error = message(done, call, result)
    if call != "vkCreateInstance":
        assert error["where"].startswith("Vulkan device ")
    steps = sum(line.startswith("step ") for line in done.stderr.splitlines())
    if state.exists():
        inspected = ran(with_it, "eval", state)
        assert inspected.returncode == 0, inspected.stderr
    again = trained(with_it, state)
    assert again.returncode == 0, again.stderr
    assert len(json.loads(again.stdout.splitlines()[-1])["losses"]) == STEPS
    assert sum(line.startswith("step ") for line in again.stderr.splitlines()) == STEPS - steps
    assert files_of(state) == runs.whole
    return steps


@pytest.mark.parametrize(("call", "result", "share"), slow_after(6, FAULTS))
def test_training_ends_and_goes_on(
    mebp: Runs, tmp_path: Path, call: str, result: str, share: float
) -> None:
    steps = fails_and_goes_on(mebp, tmp_path, call, result, mebp.number(call, share))
    if call in ("vkQueueSubmit", "vkWaitForFences"):
        assert steps == {FIRST: 0, MIDDLE: 1, LAST: STEPS - 1}[share]
    else:
        assert steps == 0


@pytest.mark.parametrize("method", ["mebp", "prge"])
def test_the_cpu_goes_on_in_the_middle_of_a_step(
    method: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    runs: Runs = request.getfixturevalue(method)
    fault = with_fault("vkQueueSubmit", runs.number("vkQueueSubmit", MIDDLE), LOST)
    state, with_it = tmp_path / "state", (runs.bundle, runs.examples)
    done = ran(with_it, "train", state, "--steps", STEPS, **fault)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Engine vulkan failed (Vulkan device ") == 1
    found, whole = (
        json.loads(done.stdout),
        ran(with_it, "train", runs.folder / "whole", "--steps", STEPS),
    )
    assert found["engine"] == "executorch"
    assert found["losses"] == pytest.approx(json.loads(whole.stdout)["losses"], rel=1e-5)
    (change,) = json.loads((state / "run.json").read_text())["changes"]
    assert (change["key"], change["new"], change["step"]) == ("engine", "executorch", 1)


@pytest.mark.parametrize(
    ("call", "result", "share"),
    slow_after(1, [("vkWaitForFences", LOST, MIDDLE), ("vkQueueSubmit", NO_MEMORY, LAST)]),
)
def test_a_zeroth_order_run_too(
    prge: Runs, tmp_path: Path, call: str, result: str, share: float
) -> None:
    """Its pending update is not lost with the probes of the step that failed."""
    fails_and_goes_on(prge, tmp_path, call, result, prge.number(call, share))


@pytest.mark.slow
@pytest.mark.parametrize("result", [NO_HOST_MEMORY, LOST])
def test_every_call_that_can_fail(mebp: Runs, tmp_path: Path, result: str) -> None:
    """The first and the last of each; of some no driver may."""
    assert len(mebp.counts) > 20
    for call, count in mebp.counts.items():
        for number in {1, count}:
            folder = tmp_path / f"{call}-{number}"
            if call == "vkGetPipelineCacheData":  # then shaders are compiled again
                given = with_fault(call, number, result)
                done = trained((mebp.bundle, mebp.examples), folder, **given)
                assert done.returncode == 0 and files_of(folder) == mebp.whole
            elif (call, result) != ("vkCreateInstance", LOST):
                fails_and_goes_on(mebp, folder, call, result, number)


@pytest.mark.parametrize(
    ("call", "result"),
    slow_after(
        2,
        [
            ("vkQueueSubmit", LOST),
            ("vkAllocateMemory", NO_MEMORY),
            ("vkWaitForFences", HANGS),
            ("vkCreateComputePipelines", "VK_ERROR_UNKNOWN"),
        ],
    ),
)
def test_an_evaluation_ends_and_leaves_the_state(
    mebp: Runs, tmp_path: Path, call: str, result: str
) -> None:
    state = mebp.folder / "whole"
    with_it = (mebp.bundle, mebp.examples)
    fault = with_fault(call, 3, result)
    message(ran(with_it, "eval", state, "--engine", "vulkan", **fault), call, result)
    assert files_of(state) == mebp.whole
    assert ran(with_it, "eval", state).returncode == 0


def test_the_command_line_says_it_once(mebp: Runs, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "The film is ", "completion": "great"}\n' * 3)
    train = ["train", mebp.bundle, "--data", rows, "--state", tmp_path / "state", "--steps", 4]
    evaluate = ["eval", mebp.bundle, "--data", rows, "--state", tmp_path / "state"]
    for arguments, number in ((train, 8), (evaluate, 1)):
        done = subprocess.run(
            [sys.executable, "-m", "zoexport", *map(str, arguments), "--engine", "vulkan"],
            capture_output=True,
            text=True,
            env={**os.environ, **with_fault("vkWaitForFences", number, LOST)},
            timeout=120,
        )
        assert done.returncode == 1
        said = done.stderr.splitlines()
        assert [line for line in said if "the device was lost" in line] == said[-1:]
        assert "Traceback" not in done.stderr
    assert verb(*train)["steps"] == STEPS


SESSION = """
import json, sys
from pathlib import Path
from zoexport.core.errors import ZoExportError
from zoexport.session import Dataset, Session

bundle, state = map(Path, sys.argv[1:3])
steps, rows = json.loads(sys.argv[3])
said, device = [], []
with Dataset() as examples:
    for row in rows:
        examples.add([(row[:-1], row[1:])], 0)
    for _ in range(2):
        with Session.open(bundle, engine_name="vulkan") as session:
            session.attach(state)
            for _ in range(2):
                try:
                    session.train(examples, steps)
                except ZoExportError as error:
                    said.append(str(error))
            device.append(session.info.device_bytes)
print(json.dumps({"said": said, "device": device}))
"""


def in_session(runs: Runs, state: Path, **environment: str) -> dict[str, Any]:
    """What two sessions said, one after another in one process, each of which is asked twice to train."""
    given = json.dumps([STEPS, engine_parity.EXAMPLES])
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(runs.bundle), str(state), given],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("result", [LOST, HANGS])
def test_a_session_ends_with_its_device(mebp: Runs, tmp_path: Path, result: str) -> None:
    """It touches the device no more, and says why; another session of the process goes on."""
    number = mebp.number("vkWaitForFences", MIDDLE)
    found = in_session(mebp, tmp_path / "s", **with_fault("vkWaitForFences", number, result))
    assert ["in an earlier call" in text for text in found["said"]] == [False, True]
    assert all(SAYS[result] in text for text in found["said"])
    assert files_of(tmp_path / "s") == mebp.whole


@pytest.mark.parametrize(
    ("call", "share"),
    [("vkAllocateMemory", LAST), ("vkCreateComputePipelines", LAST), ("vkQueueSubmit", MIDDLE)],
)
def test_a_session_without_memory_can_be_asked_again(
    mebp: Runs, tmp_path: Path, call: str, share: float
) -> None:
    """What it had made before is used or given back, and not made twice."""
    whole = in_session(mebp, tmp_path / "whole")
    number = mebp.number(call, share)
    found = in_session(mebp, tmp_path / "s", **with_fault(call, number, NO_MEMORY))
    assert len(found["said"]) == 1 and SAYS[NO_MEMORY] in found["said"][0]
    assert found["device"] == whole["device"]
    assert files_of(tmp_path / "s") == files_of(tmp_path / "whole") == mebp.whole


def test_a_library_at_another_place_that_is_not_there(mebp: Runs, tmp_path: Path) -> None:
    """Or is none of Vulkan's."""
    for library in (tmp_path / "libvulkan.so", library_path()):
        given = {"ZOEXPORT_VULKAN_LIBRARY": str(library)}
        done = trained((mebp.bundle, mebp.examples), tmp_path / "s", **given)
        assert done.returncode == 1
        assert f"found no library of Vulkan at {library}, as ZOEXPORT_VULK" in done.stderr
