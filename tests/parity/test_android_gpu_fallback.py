"""The CPU's programs in a bundle for android-gpu: the same steps, a run on both, text, and what a missing GPU says."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.engine_parity import data
from tests.support.verbs import verb
from tests.support.vulkan import without_driver
from zoexport.api import Bundle
from zoexport.core import manifest
from zoexport.core.errors import BundleError, ConfigError, ZoExportError
from zoexport.session import Session
from zoexport.session.job import Job, Request

pytestmark = pytest.mark.parity
CPU = "executorch"
SETTINGS: dict[str, Any] = {
    "weights": "int4",
    "lora__target_modules": "all-linear",
    "generate": True,
}
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("mebp", {}),
    ("prge", {"num_queries": 2}),
]


def gpu_bundle(compiler: Compiler, method: str = "mebp", **settings: Any) -> Path:
    return compiler.bundle("llama_tied", method, "android-gpu", **SETTINGS, **settings)


def losses(bundle: Path, engine: str | None, state: Path, steps: int) -> list[float]:
    with Session.open(bundle, engine_name=engine) as session, data() as examples:
        assert session.info.engine == (engine or "vulkan")
        session.attach(state, seed=11)
        session.train(examples, steps)
        session.save()
        return [session.record(step).loss for step in range(session.info.steps)]


@pytest.mark.parametrize(("method", "settings"), METHODS)
def test_both_engines_take_the_same_steps_and_continue_each_other_s_runs(
    compiler: Compiler, tmp_path: Path, method: str, settings: dict[str, Any]
) -> None:
    bundle = gpu_bundle(compiler, method, **settings)
    on_gpu = losses(bundle, None, tmp_path / "gpu", 4)
    on_cpu = losses(bundle, CPU, tmp_path / "cpu", 4)
    assert on_cpu == pytest.approx(on_gpu, rel=1e-5)
    assert losses(bundle, CPU, tmp_path / "gpu", 6)[:4] == on_gpu
    assert losses(bundle, None, tmp_path / "cpu", 6) == pytest.approx(
        losses(bundle, None, tmp_path / "gpu", 6), rel=1e-4
    )


def test_the_cpu_generates(compiler: Compiler) -> None:
    texts = [
        Bundle.open(bundle, engine=engine).generate("the film is", max_new_tokens=12).tokens
        for bundle, engine in (
            (gpu_bundle(compiler), None),
            (gpu_bundle(compiler), CPU),
            (compiler.bundle("llama_tied", "mebp", "host", **SETTINGS), None),
        )
    ]
    assert len(texts[0]) > 0
    assert texts[0] == texts[1] == texts[2]


def test_without_a_gpu_the_cpu_trains_and_says_so_once(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, state = gpu_bundle(compiler), tmp_path / "state"
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "The film is ", "completion": "great"}\n' * 3)
    for name, value in without_driver(tmp_path).items():
        monkeypatch.setenv(name, value)
    arguments = ["train", bundle, "--data", rows, "--state", state, "--steps", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "zoexport", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Engine vulkan failed (Vulkan: ") == 1
    changes = json.loads((state / "run.json").read_text())["changes"]
    assert changes == [{"key": "engine", "old": "vulkan", "new": CPU, "step": 0}]
    assert verb("eval", bundle, "--data", rows, "--state", state)["examples"] == 3
    # Who names the engine gets it or an error.
    with pytest.raises(ZoExportError, match=r"^Vulkan: "):
        Session.open(bundle, engine_name="vulkan")
    with pytest.raises(ZoExportError, match=r"^Vulkan: "):
        Bundle.open(bundle).parity(steps=1)


def test_a_job_goes_on_without_a_gpu(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the apps have it: in another process too, and with the GPU again once there is one."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "The film is ", "completion": "great"}\n' * 3)
    request = Request(gpu_bundle(compiler), rows, steps=2)
    with Job(tmp_path / "job") as job:
        job.start(request)  # there is a device yet
        monkeypatch.setenv("ZOEXPORT_VULKAN_DEVICE", "nonesuch")
        job.run(changed=lambda view: job.pause() if view.step == 1 else None)
        assert (job.view.phase, job.view.step) == ("paused", 1)
        assert "nonesuch" in job.view.notice
    with Job(tmp_path / "job") as again:
        again.run()
        assert (again.view.phase, again.view.step) == ("done", 2)
        with again.session() as session:
            assert (session.info.engine, session.info.steps) == (CPU, 2)
        # Another engine is no other run: nothing is asked.
        monkeypatch.delenv("ZOEXPORT_VULKAN_DEVICE")
        again.start(dataclasses.replace(request, steps=3))
        again.run()
        assert (again.view.phase, again.view.step, again.view.notice) == ("done", 3, "")
        with again.session() as session:
            assert (session.info.engine, session.info.steps) == ("vulkan", 3)


def test_operators_that_the_runtime_lacks_are_named_before_the_cpu_trains(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = shutil.copytree(gpu_bundle(compiler), tmp_path / "bundle")
    content = json.loads((bundle / manifest.FILE).read_text())
    content["required_ops"].append("zoexport::of_tomorrow.out")
    content["bundle_id"] = manifest.bundle_id(content)
    (bundle / manifest.FILE).write_text(json.dumps(content))
    monkeypatch.setenv("ZOEXPORT_VULKAN_DEVICE", "nonesuch")
    with pytest.raises(BundleError, match=r"the operator zoexport::of_tomorrow\.out"):
        Session.open(bundle)


def test_an_engine_without_programs_is_one_message(compiler: Compiler) -> None:
    with pytest.raises(ConfigError, match="engine: found mlx; expected vulkan or executorch"):
        Session.open(gpu_bundle(compiler), engine_name="mlx")
    on_host = compiler.bundle("llama_tied", "mebp", "host", **SETTINGS)
    with pytest.raises(ConfigError, match="expected executorch, whose programs"):
        Session.open(on_host, engine_name="vulkan")
