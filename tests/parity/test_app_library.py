"""The library that apps of Apple's systems link: without ExecuTorch, MLX a part of it. Here it is a shared one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.compiled import Compiler
from zoexport.core.native import ENVIRONMENT, native_folder

pytestmark = pytest.mark.parity
APP = native_folder() / "app"


def train(bundle: Path, data: Path, state: Path, library: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "zoexport", "train", str(bundle), "--data", str(data)]
    line += ["--state", str(state), "--steps", "3", "--json"]
    environment = {**os.environ, ENVIRONMENT: str(library)}
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    lines = [json.dumps({"prompt": f"number {n}", "completion": " yes"}) for n in range(5)]
    path.write_text("\n".join(lines))
    return path


def test_it_trains_an_mlx_bundle_as_the_other_does(
    compiler: Compiler, data: Path, tmp_path: Path
) -> None:
    bundle = compiler.bundle("llama_tied", "prge", "ios-mlx", weights="int4", num_queries=2)
    logs = []
    for name, library in (("app", APP), ("own", native_folder())):
        done = train(bundle, data, tmp_path / name, library)
        assert done.returncode == 0, done.stderr
        logs.append((tmp_path / name / "trajectory.log").read_bytes())
    assert logs[0] == logs[1]


def test_it_refuses_a_bundle_for_executorch(compiler: Compiler, data: Path, tmp_path: Path) -> None:
    done = train(compiler.bundle("llama_tied", "prge"), data, tmp_path / "state", APP)
    assert done.returncode != 0
    assert "this library was built without ExecuTorch" in done.stderr + done.stdout
    assert "Compile the bundle for ios-mlx or ios-coreml." in done.stderr + done.stdout
