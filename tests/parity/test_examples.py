"""Each program in examples/ goes from a bundle or a model to an adapter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.compiled import Compiler
from tests.support.hosts import ROOT
from zoexport.core.native import native_folder

pytestmark = pytest.mark.parity
EXAMPLES = ROOT / "examples"
STEPS = 20


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    lines = [json.dumps({"prompt": f"say {n} ", "completion": "one two"}) for n in range(8)]
    path.write_text("\n".join(lines) + "\n")
    return path


def checked(*command: object, **variables: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_python_example(compiler: Compiler, data: Path, tmp_path: Path) -> None:
    script = EXAMPLES / "python" / "train.py"
    out = checked(sys.executable, script, compiler.model("llama"), data, tmp_path / "run", "say")
    assert out.count(": loss ") == STEPS and f"after {STEPS} steps" in out
    before, after = (float(word) for word in out.split("\nloss ")[1].split()[0:3:2])
    assert after < before
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").is_file()


def test_add_a_method(compiler: Compiler, data: Path, tmp_path: Path) -> None:
    script = EXAMPLES / "add_a_method" / "train.py"
    out = checked(sys.executable, script, compiler.model("llama"), data, tmp_path / "run")
    assert "parity: losses differ by at most" in out and "after 20 steps" in out


def test_c_example(compiler: Compiler, data: Path, tmp_path: Path) -> None:
    program, library = tmp_path / "train", native_folder()
    source, include = EXAMPLES / "c" / "train.c", ROOT / "runtime_ops" / "include"
    flags = ("-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{include}", f"-L{library}")
    checked("cc", *flags, source, "-lzoexport", f"-Wl,-rpath,{library}", "-o", program)
    bundle = compiler.bundle("llama", "mebp", generate=True, max_length=24, batch_size=2)
    state, adapter = tmp_path / "state", tmp_path / "adapter"
    out = checked(program, bundle, data, state, STEPS, "say", adapter)
    assert out.count(": loss ") == STEPS and f"step {STEPS} of {STEPS}" in out
    assert (adapter / "adapter_model.safetensors").is_file()
    again = checked(program, bundle, data, state, STEPS + 2, "say", tmp_path / "other")
    assert again.count(": loss ") == 2  # resumed
    failed = subprocess.run(
        [program, bundle, "nothing.jsonl", state, "1", "say", adapter], capture_output=True
    )
    assert failed.returncode == 1 and b"nothing.jsonl" in failed.stderr
