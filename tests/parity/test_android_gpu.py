"""Bundles for zoexport's Vulkan engine in the session: the same steps as the methods' references.

They run on whatever device Vulkan has. Mesa's llvmpipe, which is a CPU, is one: a machine without a GPU has it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import engine_parity
from tests.support.compiled import Compiler, compile_tiny
from tests.support.engine_parity import data
from tests.support.runner import ran
from tests.support.sessions import write_examples
from tests.support.tiers import slow_after
from tests.support.tiny_models import ENCODERS
from tests.support.verbs import verb
from tests.support.vulkan import without_driver
from zoexport.core import manifest as manifests
from zoexport.core.errors import LoweringError, ZoExportError
from zoexport.core.files import sha256
from zoexport.session import Bundle, Dataset, Session
from zoexport.targets.vulkan import calls
from zoexport.targets.vulkan.lower import FILE

pytestmark = pytest.mark.parity
TARGET = "android-gpu"
ALL = {"lora__target_modules": "all-linear", "weights": "int4"}
ARCHITECTURES = (
    "llama_tied",
    "gpt2",
    "gemma3",
    "qwen3",
    "olmo2",
    "phi3",
    "opt",
    "gpt_neox",
    "bloom",
    "falcon",
)
CASES = [
    *((name, "int4") for name in ARCHITECTURES),
    *((name, "fp32") for name in ("qwen2", "gemma2", "cohere", "mpt", "starcoder2")),
    *((name, "int8") for name in ("mistral", "stablelm", "phi")),
]
OTHER_ENCODERS = [name for name in ENCODERS if name != "roberta"]
ZEROTH_ORDER: list[tuple[str, dict[str, Any]]] = [
    ("prge", {"num_queries": 2}),
    ("mezo", {"num_queries": 1}),
    ("spzo", {"perturbations": "1,1", "batch_size": 2}),
]
# Makes an instance whose description has a flag that Vulkan does not know.
MISTAKE = """
from ctypes import CDLL, Structure, byref, c_int, c_uint, c_void_p

class Description(Structure):
    _fields_ = [
        ("type", c_int), ("next", c_void_p), ("flags", c_uint), ("application", c_void_p),
        ("layers", c_uint), ("layer", c_void_p), ("extensions", c_uint), ("extension", c_void_p),
    ]

CDLL("libvulkan.so.1").vkCreateInstance(byref(Description(1, flags=64)), None, byref(c_void_p()))
"""


def compare(bundle: Path, steps: int = 4) -> dict[str, Any]:
    return engine_parity.compare(bundle, "vulkan", steps)


@pytest.mark.parametrize(("name", "weights"), slow_after(2, CASES))
def test_mebp(compiler: Compiler, name: str, weights: str) -> None:
    """Every tensor of every adapter against autograd over the same dequantized weights."""
    report = compare(compiler.bundle(name, "mebp", TARGET, **{**ALL, "weights": weights}))
    assert report["max_relative_gradient_error"] <= 1e-5


@pytest.mark.parametrize(
    "settings",
    slow_after(
        1,
        [
            {"max_length": 48, "batch_size": 1, "lora__dropout": 0.1},
            {"optimizer": "sgd", "momentum": 0.9, "checkpoint_every": 2, "max_grad_norm": 0},
            {"batch_size": 2, "gradient_accumulation_steps": 2, "loss": "choices"},
            {
                "group_size": 64,
                "lora__target_modules": "attention",
                "lora__layers_to_transform": "last:1",
            },
        ],
    ),
    ids=lambda settings: ",".join(settings),
)
def test_settings_of_mebp(compiler: Compiler, settings: dict[str, Any]) -> None:
    compare(compiler.bundle("qwen2", "mebp", TARGET, **{**ALL, **settings}))


@pytest.mark.parametrize(("method", "settings"), slow_after(1, ZEROTH_ORDER))
def test_zeroth_order_over_layers(
    compiler: Compiler, method: str, settings: dict[str, Any]
) -> None:
    report = compare(compiler.bundle("llama", method, TARGET, weights="int4", **settings))
    # The noise is the session's, and the update of it is the reference's to the bit.
    assert report["max_relative_state_error"] == 0.0


@pytest.mark.parametrize("name", slow_after(1, ["roberta", *OTHER_ENCODERS]))
def test_encoders(compiler: Compiler, name: str) -> None:
    """Rows of unequal lengths, padding that layers hide, and positions that padding does not count in."""
    report = compare(compiler.bundle(name, "mebp", TARGET, **ALL))
    assert report["max_relative_gradient_error"] <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("prge", {"num_queries": 2, "weights": "int4"}),
        ("spzo", {"split": "layer:1", "perturbations": "2,4", "weights": "int4"}),
        (
            "spzo",
            {
                "split": "head",
                "perturbations": "1,1",
                "train": "full",
                "learning_rate": 1e-3,
                "eps": 1e-2,
            },
        ),
        ("mebp", {**ALL, "loss": "choices", "gradient_accumulation_steps": 2}),
        ("mebp", {**ALL, "compute": "fp16"}),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_settings_of_encoders(compiler: Compiler, method: str, settings: dict[str, Any]) -> None:
    compare(compiler.bundle("roberta", method, TARGET, **settings))


def test_an_encoder_hides_padding_as_the_cpu_does(compiler: Compiler) -> None:
    """Of one bundle, by either engine: rows that end early, a pad token inside of one, and a row of two tokens."""
    bundle = compiler.bundle("roberta", "mebp", TARGET, **ALL)
    rows = [[5, 7, 9, 11], [3, 1, 4, 6, 8, 1, 10, 12, 14, 2, 3, 4, 5, 6, 7, 8, 9, 10], [2, 9]]
    losses = []
    for engine in ("vulkan", "executorch"):
        with Session.open(bundle, engine_name=engine) as session, Dataset() as examples:
            for tokens in rows:
                examples.add([(tokens, [-100] * (len(tokens) - 1) + [20])], 0)
            losses.append([session.step(examples, [0, 1, 2]).loss for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0][0] != losses[0][2]


@pytest.mark.slow
def test_heads_that_an_index_picks_without_gradients(compiler: Compiler) -> None:
    settings = {"num_queries": 2, "weights": "int4"}
    report = compare(compiler.bundle("falcon", "prge", TARGET, **settings))
    assert report["max_relative_state_error"] == 0.0


@pytest.mark.parametrize("cpu", slow_after(1, ["android-cpu", "host"]))
@pytest.mark.parametrize(("method", "settings"), ZEROTH_ORDER)
def test_a_log_of_the_gpu_gives_the_cpu_the_same_bits(
    compiler: Compiler, method: str, settings: dict[str, Any], cpu: str, tmp_path: Path
) -> None:
    """The log alone: a session of the CPU's bundle follows the records, and runs no program."""
    bundles = [
        compiler.bundle("llama", method, target, weights="int4", **settings)
        for target in (TARGET, cpu)
    ]
    with Session.open(bundles[0]) as trained, data() as examples:
        trained.attach(tmp_path / "gpu", seed=11)
        first = state_of(trained)
        trained.train(examples, 5)
        log = [trained.record(number) for number in range(5)]
        expected = state_of(trained)
        unfinished = state_of(trained, finished=False)
    with Session.open(bundles[1]) as followed:
        assert followed.info.target == cpu
        followed.attach(tmp_path / "cpu", seed=11)
        assert state_of(followed) == first
        followed.follow(log)
        assert state_of(followed) == expected != first
        assert state_of(followed, finished=False) == unfinished != expected
    # From the state on the disk, and from its log without the snapshots.
    with Session.open(bundles[1]) as opened:
        opened.attach(tmp_path / "cpu", read_only=True)
        assert state_of(opened) == expected
        replayed = {name: opened.replay_slot(name, 5).tobytes() for name in expected}
        assert replayed == expected


def state_of(session: Session, *, finished: bool = True) -> dict[str, bytes]:
    return {
        slot.name: session.read_slot(slot.name, finished=finished).tobytes()
        for slot in session.slots()
    }


def test_training_from_the_command_line(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama_tied", "mebp", TARGET, **ALL)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "The film is ", "completion": "great"}\n' * 3)
    state = tmp_path / "state"
    before = verb("eval", bundle, "--data", rows)
    trained = verb("train", bundle, "--data", rows, "--state", state, "--steps", 8)
    after = verb("eval", bundle, "--data", rows, "--state", state)
    assert trained["steps"] == 8 and after["loss"] < 0.8 * before["loss"]


def in_process(bundle: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Two steps of a session in a process of its own."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom zoexport.session import Dataset, Session\n"
        "with Session.open(Path(sys.argv[1]), engine_name='vulkan') as session, Dataset() as examples:\n"
        "    examples.add([(list(range(20)), list(range(1, 21)))], 0)\n"
        "    print([session.step(examples, [0]).loss for _ in range(2)])\n"
    )
    command = [sys.executable, "-c", script, str(bundle)]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_the_validation_layer_watches(compiler: Compiler) -> None:
    """Every process of a test, its checks of synchronization too; a mistake ends it (``vk_layer_settings.txt``)."""
    bundle = compiler.bundle("llama_tied", "mebp", TARGET, **ALL)
    done = in_process(bundle, VK_LOADER_DEBUG="layer")
    assert done.returncode == 0, done.stderr
    assert "Loading layer library libVkLayer_khronos_validation.so" in done.stderr
    command = [sys.executable, "-c", MISTAKE]
    mistaken = subprocess.run(command, capture_output=True, text=True)
    assert mistaken.returncode == -signal.SIGTRAP, mistaken.stderr
    assert "VUID-VkInstanceCreateInfo-flags" in mistaken.stdout


def test_a_device_that_is_not_there_is_one_message(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama_tied", "mebp", TARGET, **ALL)
    done = in_process(bundle, ZOEXPORT_VULKAN_DEVICE="no such device")
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert "Vulkan: found no device 'no such device'; expected one of " in message
    assert "ZOEXPORT_VULKAN_DEVICE is a number or a part of a name" in message
    by_number = in_process(bundle, ZOEXPORT_VULKAN_DEVICE="0")
    assert by_number.returncode == 0, by_number.stderr


def test_what_a_driver_made_of_shaders_is_kept(compiler: Compiler, tmp_path: Path) -> None:
    """Another session reads it; a file that another hand changed is not given to a driver, and made anew."""
    bundle = compiler.bundle("llama_tied", "mebp", TARGET, **ALL)
    losses = in_process(bundle, ZOEXPORT_SHADERS=str(tmp_path)).stdout
    (kept,) = tmp_path.glob("vulkan-*.pipelines")
    content = kept.read_bytes()
    assert sha256_hex(content[:-64]) == content[-64:].decode()
    kept.write_bytes(b"x" + content[1:])
    done = in_process(bundle, ZOEXPORT_SHADERS=str(tmp_path))
    assert done.returncode == 0 and done.stdout == losses
    again = kept.read_bytes()
    assert sha256_hex(again[:-64]) == again[-64:].decode()
    # A folder that cannot be made is no error.
    assert in_process(bundle, ZOEXPORT_SHADERS=str(kept / "none")).stdout == losses


def test_what_shaders_cost_is_counted_and_timed(compiler: Compiler, tmp_path: Path) -> None:
    """Operations follow from sizes, and seconds are the device's own."""
    bundle = compiler.bundle("llama_tied", "mebp", TARGET, **ALL)
    rows = [([(tokens[:-1], tokens[1:])], 0) for tokens in engine_parity.EXAMPLES]
    examples = write_examples(tmp_path / "examples.jsonl", rows)
    arguments = ("--examples", examples, "--state", tmp_path / "state", "--steps", 2)
    found = ran("train", bundle, *arguments, "--timings")
    kernels, programs = found["kernels"], found["programs"]
    assert set(kernels) == {
        "product", "product int4", "rows", "attention", "attention_gradient", "labels", "unpack",
    }  # fmt: skip
    dispatches, flops = Counter[str](), Counter[str]()
    for program in Bundle.open(bundle).manifest["programs"]:
        stated = json.loads((bundle / program["file"]).read_text("utf-8"))
        for call in stated["programs"][program["entry_point"]]["calls"]:
            if call["op"] == "product":
                operands = [call[key] for key in ("a", "b") if isinstance(call[key], dict)]
                kind = " ".join(["product", *(one["kind"] for one in operands if "kind" in one)])
                count = programs.get(program["name"], {"calls": 0})["calls"]
                dispatches[kind] += count
                sizes = (call[key] for key in ("batch", "rows", "depth", "columns"))
                flops[kind] += count * 2 * math.prod(sizes)
    for kind in ("product", "product int4"):
        assert kernels[kind]["dispatches"] == dispatches[kind] > 0
        assert kernels[kind]["flops"] == flops[kind]
    assert all(cost["bytes"] > 0 and cost["flops"] > 0 for cost in kernels.values())
    # llvmpipe has a clock, and the time of shaders is a part of that of programs.
    spent = [cost["seconds"] for cost in kernels.values()]
    assert all(seconds > 0 for seconds in spent)
    assert sum(spent) <= sum(program["seconds"] for program in programs.values())
    assert found["device_mb"] > 0
    # An evaluation says likewise what it cost.
    evaluated = ran("eval", bundle, "--examples", examples, "--timings")
    assert "attention_gradient" not in evaluated["kernels"] and evaluated["open_seconds"] > 0
    assert evaluated["kernels"]["attention"]["dispatches"] > 0
    # Nobody asked for times.
    assert "kernels" not in ran("eval", bundle, "--examples", examples)


def test_an_engine_without_shaders_counts_none(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama_tied", "mebp", "host", **ALL)
    rows = [([(tokens[:-1], tokens[1:])], 0) for tokens in engine_parity.EXAMPLES]
    examples = write_examples(tmp_path / "examples.jsonl", rows)
    found = ran("eval", bundle, "--examples", examples, "--timings")
    assert (found["kernels"], found["device_mb"]) == ({}, None)


def sha256_hex(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_doctor_lists_devices() -> None:
    checks = {check["name"]: check for check in verb("doctor")["checks"]}
    device = checks["Vulkan device 0"]
    assert device["status"] == "ok" and "Vulkan 1." in device["found"]


def test_a_machine_without_a_driver_is_one_message(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama_tied", "mebp", TARGET, **ALL)
    done = in_process(bundle, **without_driver(tmp_path))
    assert done.returncode == 1
    assert "expected a library and a driver of Vulkan 1.1" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("zoexport-vulkan-1", "zoexport-vulkan-9"), "format: found"),
        (
            lambda text: text.replace('"op":"rows"', '"op":"columns"', 1),
            "a call that this engine has",
        ),
        (lambda text: text[: len(text) // 2], "valid JSON"),
    ],
)
def test_a_program_file_of_a_stranger_is_one_message(
    compiler: Compiler, tmp_path: Path, change: Any, message: str
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(compiler.bundle("llama_tied", "mebp", TARGET, **ALL), bundle)
    (bundle / FILE).write_text(change((bundle / FILE).read_text()))
    path = bundle / manifests.FILE
    content = json.loads(path.read_text("utf-8"))
    content["files"][FILE] = {
        "bytes": (bundle / FILE).stat().st_size,
        "sha256": sha256(bundle / FILE),
    }
    content["bundle_id"] = manifests.bundle_id(content)
    path.write_text(json.dumps(content), "utf-8")
    with (
        Session.open(bundle, engine_name="vulkan") as session,
        data() as examples,
        pytest.raises(ZoExportError, match=message),
    ):
        session.step(examples, [0])


def test_what_has_no_shader_is_refused_by_compile(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No architecture has such an operator; the engine of this test has no attention."""

    def refused(writer: Any, node: Any) -> None:
        raise writer._refused(node, f"the operator {node.target}")

    monkeypatch.setattr(calls._Writer, "_attention", refused)
    with pytest.raises(LoweringError, match=r"found the operator zoexport\.attention"):
        compile_tiny(compiler.model("llama"), tmp_path / "bundle", "mebp", TARGET)
    assert list(tmp_path.iterdir()) == []
