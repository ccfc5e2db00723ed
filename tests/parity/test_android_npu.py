"""The target android-npu in QNN's emulation of the HTP, against the method's reference in fp32."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.compiled import Compiler, compile_tiny
from tests.support.generation import adapted, greedy, prompt_of, reference
from tests.support.qnn import needs_qnn
from tests.support.sessions import make_dataset
from tests.support.tiny_models import VOCAB_SIZE
from tests.sweep.cases import Case, settings
from tests.sweep.models import save
from zoexport.api import Bundle
from zoexport.compiler.build import compile_bundle
from zoexport.compiler.parity_inner import compare_inner
from zoexport.compiler.parity_signs import compare_signs
from zoexport.core import qnn
from zoexport.core.errors import ConfigError, LoweringError, ZoExportError
from zoexport.session import Session, describe_state
from zoexport.targets.executorch.qnn import form, partition

# One at a time: threads of two emulations wait for each other, spinning.
pytestmark = [pytest.mark.parity, pytest.mark.slow, needs_qnn]

# Few rows and many labels a call: what emulation costs is the calls.
SHAPE: dict[str, Any] = {"target": "android-npu", "max_length": 12, "batch_size": 8, "labels": 96}
OURS = {"zoexport::zo_update", "zoexport::zo_perturb", "zoexport::label_logprobs"}


def quietly(*_: object) -> None:
    """No progress."""


@pytest.mark.parametrize(
    ("model", "soc", "queries", "steps"),
    [
        ("llama", "SM8650", 1, 5),
        ("llama", "SM8750", 2, 2),
        ("qwen2", "SM8650", 2, 2),
        ("gemma3", "SM8750", 1, 2),
        ("olmo2", "SM8650", 1, 2),
    ],
)
def test_losses_are_those_of_fp32(
    model: str, soc: str, queries: int, steps: int, compiler: Compiler
) -> None:
    compiled = compiler.result(model, soc=soc, num_queries=queries, weights="int4", **SHAPE)
    assert compiled["delegates"] == 1
    for program, operators in compiled["fallback_ops"].items():
        (delegate,) = compiled["delegate_list"][program]
        assert delegate.startswith("QnnBackend: ") and "aten::linear" in delegate
        assert set(operators) <= OURS
        assert set(compiled["fallback_reasons"][program]) == set(operators)
    result = Bundle.open(Path(compiled["bundle"])).parity(steps=steps, progress=quietly).as_dict()
    assert result["passed"] and result["max_relative_loss_error"] < 5e-3
    assert result["max_relative_state_error"] < 1e-6


@pytest.mark.parametrize("activations", ["fp32", "int16"])
def test_large_models_are_divided_into_contexts(
    activations: str, compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "WEIGHTS", 40_000)
    settings = {**SHAPE, "activations": activations, "weights": "int4", "num_queries": 1}
    shown: list[float] = []

    def progress(phase: str, share: float | None) -> None:
        if phase.startswith("lowering to the NPU") and share is not None:
            shown.append(share)

    output = tmp_path / "divided"
    compiled = compile_tiny(compiler.model("qwen2"), output, progress=progress, **settings)
    count = compiled["delegates"]
    assert count > 2 and shown == [number / count for number in range(count)]
    whole = compiler.bundle("qwen2", **settings)
    examples = [([(prompt_of(5 + row, VOCAB_SIZE),) * 2], 0) for row in range(8)]
    losses = []
    for bundle in (output, whole):
        with Session.open(bundle) as session, make_dataset(examples) as dataset:
            session.train(dataset, 2)
            losses.append(session.evaluate(dataset).loss)
    divided, undivided = losses
    assert divided == pytest.approx(undivided, rel=1e-3)


@pytest.mark.parametrize("activations", ["fp32", "int16"])
def test_what_was_trained_on_the_npu_generates_on_the_cpu(
    activations: str, compiler: Compiler, tmp_path: Path
) -> None:
    settings = {**SHAPE, "activations": activations, "num_queries": 1, "learning_rate": 1e-2}
    bundle = compiler.bundle("llama_tied", weights="int4", generate=True, **settings)
    model = reference(compiler.model("llama_tied"), bundle)
    prompt = prompt_of(9, VOCAB_SIZE)
    rows = [prompt_of(5 + row, VOCAB_SIZE) for row in range(8)]
    examples = [([(tokens, [*tokens[1:], -100])], 0) for tokens in rows]
    with make_dataset(examples) as dataset:
        for steps in (10, 20):  # the second session goes on with the first one's state
            with Session.open(bundle) as session:
                session.attach(tmp_path)
                session.train(dataset, steps)
    steps = activations != "fp32"
    on_host = compiler.bundle(
        "llama_tied", "mebp", weights="int4", max_length=12, scale_steps=steps
    )
    with (
        Session.open(bundle) as session,
        Session.open(on_host) as host,
        make_dataset(examples) as dataset,
    ):
        # One program trains and evaluates. int16's ranges move this loss by 1.05 %, fp16 by less than 0.01 %.
        most = {"fp32": 1e-3, "int16": 2e-2}[activations]
        expected = host.evaluate(dataset)
        assert session.evaluate(dataset).loss == pytest.approx(expected.loss, rel=most)
        session.attach(tmp_path)
        assert session.info.steps == 20
        slots = {
            slot.name: torch.frombuffer(
                bytearray(session.read_slot(slot.name)), dtype=torch.float32
            ).reshape(slot.shape)
            for slot in session.slots()
        }
        made = session.generate(prompt, max_new_tokens=40, stop_tokens=())
        base = session.generate(prompt, max_new_tokens=40, stop_tokens=(), untrained=True)
    assert any(values.any() for values in slots.values())
    with adapted(model, bundle, slots):
        assert list(made.tokens) == greedy(model, prompt, 40)
    assert list(base.tokens) == greedy(model, prompt, 40)


def train(
    bundle: Path, data: Path, state: Path, steps: int, **environment: str
) -> subprocess.Popen[str]:
    line = ["train", bundle, "--data", data, "--state", state, "--steps", steps, "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "zoexport", *map(str, line)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def losses(process: subprocess.Popen[str], engine: str) -> list[float]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    found = json.loads(out.splitlines()[-1])  # QNN writes to the standard output
    assert found["engine"] == engine
    return list(found["losses"])


def test_a_killed_run_resumes_and_the_cpu_continues_it_without_qnn(
    compiler: Compiler, tmp_path: Path
) -> None:
    settings = {**SHAPE, "num_queries": 1, "learning_rate": 1e-3, "weights": "int4"}
    bundle = compiler.bundle("llama_tied", generate=True, soc="SM8650,SM8750", **settings)
    data, log = tmp_path / "data.jsonl", tmp_path / "npu" / "trajectory.log"
    data.write_text('{"prompt": "The film is ", "completion": "great"}\n' * 8)
    killed = train(bundle, data, tmp_path / "npu", 20)
    while not log.exists() or log.stat().st_size < 64 + 3 * 24:
        assert killed.poll() is None, killed.communicate()[1]
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    on_npu = losses(train(bundle, data, tmp_path / "npu", 20), "qnn")
    without = {qnn.SDK_ROOT: str(tmp_path)}
    on_cpu = losses(train(bundle, data, tmp_path / "cpu", 20, **without), "executorch")
    assert len(on_npu) == len(on_cpu) == 20
    # fp16 on one side, and trajectories that drift apart
    assert on_cpu == pytest.approx(on_npu, rel=5e-3) and on_cpu != on_npu
    # What the NPU trained goes on without it, from the same values.
    both = losses(train(bundle, data, tmp_path / "npu", 22, **without), "executorch")
    assert both[:20] == on_npu
    changes = describe_state(tmp_path / "npu")["changes"]
    assert [(one["step"], one["key"], one["new"]) for one in changes] == [
        (20, "engine", "executorch")
    ]


def test_a_phone_tries_the_chips_in_their_order(compiler: Compiler, tmp_path: Path) -> None:
    settings = {**SHAPE, "num_queries": 1, "weights": "int4"}
    bundle = compiler.bundle("llama_tied", generate=True, soc="SM8650, SM8750", **settings)
    first = json.loads((bundle / "manifest.json").read_text())
    second = first["fallback"]
    assert [one["engine"] for one in (first, second, second["fallback"])] == [
        "qnn",
        "qnn",
        "executorch",
    ]
    files = [one["programs"][0]["file"] for one in (first, second, second["fallback"])]
    assert files == ["model.pte", "SM8750-model.pte", "fallback.pte"]
    examples = [([(prompt_of(5 + row, VOCAB_SIZE),) * 2], 0) for row in range(8)]
    found = []
    for broken in (0, 1, 2):
        altered = shutil.copytree(bundle, tmp_path / str(broken))
        for file in files[:broken]:
            size = (altered / file).stat().st_size
            (altered / file).write_bytes(bytes(size))
        with Session.open(altered, verify=False) as session, make_dataset(examples) as dataset:
            session.train(dataset, 2)
            found.append((session.info.engine, session.evaluate(dataset).loss))
    assert [engine for engine, _ in found] == ["qnn", "qnn", "executorch"]
    assert [loss for _, loss in found] == pytest.approx([found[0][1]] * 3, rel=1e-3)
    with (
        Session.open(tmp_path / "2", verify=False, engine_name="qnn") as session,
        make_dataset(examples) as dataset,
        pytest.raises(ZoExportError, match=r"SM8750-model\.pte"),
    ):
        session.train(dataset, 1)


FEW_COPIES = Case(
    target="android-npu",
    architecture="qwen2",
    vocabulary=333,
    hidden=96,
    heads=6,
    kv_heads=2,
    intermediate=160,
    num_queries=1,
    lora_r=16,
    max_length=32,
)
"""One row and two copies: a value of one row that both copies read is broadcast in the whole program."""


def test_a_value_that_the_htp_broadcasts_is_wrong_and_so_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(FEW_COPIES, tmp_path / "model")
    bundle = tmp_path / "bundle"
    compile_bundle(
        str(tmp_path / "model"),
        method="prge",
        target="android-npu",
        output=bundle,
        settings=settings(FEW_COPIES),
        recipe=None,
        force=False,
        progress=quietly,
    )
    result = Bundle.open(bundle).parity(steps=2, progress=quietly).as_dict()
    assert result["passed"] and result["max_relative_loss_error"] < 1e-3
    dump = tmp_path / "dump"
    values = compare_inner(Bundle.open(bundle), "train", dump=dump, progress=quietly)["values"]
    assert len(values) > 40 and all(max(value["error"]) < 5e-3 for value in values)
    assert {path.name for path in dump.iterdir()} == {
        "train.reference.safetensors",
        "train.computed.safetensors",
    }

    monkeypatch.setattr(form, "repeat_broadcasts", lambda _: None)
    values = compare_inner(Bundle.open(bundle), "train", progress=quietly)["values"]
    first = next(value for value in values if max(value["error"]) > 0.1)
    # A layer's output, of one row, plus what its two adapters add: the second copy misses the first operand.
    assert first["operator"] == "aten.add.Tensor" and first["shape"] == [2, 32, 96]
    assert first["error"][0] < 5e-3 and first["error"][1] > 0.5
    logprobs = next(value for value in values if value["name"] == "label_logprobs")
    assert logprobs["operator"] == "output" and logprobs["error"][1] > 0.05


def test_inner_values_are_those_of_whole_programs_on_the_npu(compiler: Compiler) -> None:
    with pytest.raises(ConfigError, match="target host"):
        compare_inner(
            Bundle.open(compiler.bundle("llama", num_queries=1)), "train", progress=quietly
        )
    bundle = compiler.bundle("llama", num_queries=4, **SHAPE)
    with pytest.raises(ConfigError, match=r"program head[\s\S]*train"):
        compare_inner(Bundle.open(bundle), "head", progress=quietly)


def test_one_copy_a_call(compiler: Compiler) -> None:
    result = (
        Bundle.open(compiler.bundle("llama", "mezo", num_queries=2, **SHAPE))
        .parity(steps=1, progress=quietly)
        .as_dict()
    )
    assert result["passed"] and result["max_relative_loss_error"] < 5e-3


@pytest.mark.parametrize(
    ("quantized", "eps", "least"),
    [
        ({}, 1e-2, 100),
        ({"weights": "int8", "activations": "int16"}, 1e-2, 100),
        ({"weights": "int4", "activations": "int16"}, 1e-2, 100),
    ],
    ids=["fp16", "w8a16", "w4a16"],
)
def test_gradients_have_the_signs_of_fp32(
    quantized: dict[str, str], eps: float, least: int, compiler: Compiler
) -> None:
    bundle = compiler.bundle("llama", num_queries=4, **SHAPE, **quantized)
    result = compare_signs(Bundle.open(bundle), queries=200, eps=eps, progress=quietly)
    assert result["num_queries"] >= 200 and result["counted"] >= least
    assert result["passed"] and result["agreement"] >= 0.99


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_losses_of_quantized_activations(weights: str, compiler: Compiler) -> None:
    settings = {"weights": weights, "activations": "int16"}
    compiled = compiler.result("llama", num_queries=4, **SHAPE, **settings)
    assert compiled["delegates"] == 1
    result = Bundle.open(Path(compiled["bundle"])).parity(steps=1, progress=quietly).as_dict()
    assert result["passed"] and result["max_relative_loss_error"] < 5e-3
    # Ranges are QNN's own, so that there is no resolution to hold differences to.
    assert result["difference_resolution"] is None and "difference" not in result["bounds"]


def test_products_outside_the_npu_are_refused(compiler: Compiler, tmp_path: Path) -> None:
    """This chip multiplies 16-bit activations by 8-bit constants alone: not the adapters' products."""

    def compiled(allow_fallback: bool) -> dict[str, Any]:
        return compile_bundle(
            str(compiler.model("llama")),
            method="mezo",
            target="android-npu",
            output=tmp_path / "bundle",
            settings={
                "soc": "SM8350",
                "weights": "int8",
                "activations": "int16",
                "max_length": "12",
                "batch_size": "2",
            },
            recipe=None,
            force=False,
            allow_fallback=allow_fallback,
            progress=quietly,
        )

    with pytest.raises(
        LoweringError, match=r"aten::mm x\d+ in train \(QNN refuses it.*allow_fallback=True"
    ):
        compiled(False)
    assert not (tmp_path / "bundle").exists()
    result = compiled(True)
    assert result["fallback_ops"]["train"]["aten::mm"] > 0
    assert "refuses" in result["fallback_reasons"]["train"]["aten::mm"]
    assert any("aten::linear" in delegate for delegate in result["delegate_list"]["train"])


def test_a_step_trains_and_the_manifest_says_what_it_needs(compiler: Compiler) -> None:
    bundle = compiler.bundle("llama", num_queries=4, **SHAPE)
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["backends"] == ["QnnBackend"]
    assert manifest["settings"]["soc"] == "SM8650" and manifest["max_labels"] == SHAPE["labels"]
