"""Bundles for the Vulkan engine with tensors of fp16: as near as fp16 is, whatever the size of gradients."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support import engine_parity
from tests.support.compiled import Compiler, compile_tiny
from tests.support.engine_parity import data
from tests.support.runner import ran
from tests.support.sessions import write_examples
from tests.support.tiers import slow_after
from tests.support.vulkan import without_features
from zoexport.core.errors import ZoExportError
from zoexport.core.native import runner_path
from zoexport.session import Session

pytestmark = pytest.mark.parity
TARGET = "android-gpu"
HALF = {"compute": "fp16", "lora__target_modules": "all-linear"}
CASES = [
    ("llama_tied", "int4"),
    ("gemma3", "int4"),
    ("opt", "int4"),
    *((name, "int4") for name in ("qwen3", "olmo2", "phi3", "gpt_neox", "bloom")),
    *((name, "fp32") for name in ("gpt2", "gemma2", "cohere", "mpt", "starcoder2")),
    *((name, "int8") for name in ("mistral", "stablelm", "phi")),
]
SMALL = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 1e-3}


def compare(bundle: Path) -> dict[str, Any]:
    return engine_parity.compare(bundle, "vulkan", 4)


@pytest.mark.parametrize(("name", "weights"), slow_after(1, CASES))
def test_mebp(compiler: Compiler, name: str, weights: str) -> None:
    """Every tensor of every adapter against autograd in float64: fp16 has 11 bits, and is seen."""
    report = compare(compiler.bundle(name, "mebp", TARGET, **{**HALF, "weights": weights}))
    assert 1e-5 < report["max_relative_gradient_error"] <= 2e-2


@pytest.mark.parametrize(
    ("method", "settings"),
    slow_after(
        1,
        [
            ("prge", {"num_queries": 2}),
            ("mezo", {"num_queries": 1}),
            ("spzo", {"perturbations": "1,1", "batch_size": 2}),
        ],
    ),
)
def test_zeroth_order(compiler: Compiler, method: str, settings: dict[str, Any]) -> None:
    settings = {**settings, "weights": "int4", "compute": "fp16"}
    report = compare(compiler.bundle("llama", method, TARGET, **settings))
    # The noise and the update are the session's.
    assert report["max_relative_state_error"] == 0.0


def test_gradients_far_below_fp16_s_least_number(compiler: Compiler) -> None:
    """After a step of SGD the second matrix of LoRA is about 1e-6, and gradients times it are below 6e-8."""
    report = compare(compiler.bundle("llama", "mebp", TARGET, **HALF, **SMALL))
    assert report["max_relative_gradient_error"] <= 2e-2


def altered(
    compiler: Compiler, folder: Path, alter: Callable[[torch.nn.Module], None], **settings: Any
) -> Path:
    """The bundle of the tiny llama with other weights."""
    source = compiler.model("llama")
    shutil.copytree(source, folder / "model")
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        alter(model)
    model.save_pretrained(folder / "model")
    compile_tiny(
        folder / "model", folder / "bundle", "mebp", TARGET, weights="fp32", **HALF, **settings
    )
    return folder / "bundle"


def times(named: str, factor: float) -> Callable[[torch.nn.Module], None]:
    """Weights of linear layers of this name multiplied."""

    def alter(model: torch.nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if f"{named}.weight" in name:
                parameter *= factor

    return alter


@pytest.mark.slow
def test_gradients_that_grow_beyond_fp16_between_calls(compiler: Compiler, tmp_path: Path) -> None:
    """By 2^13, and shrink again: the layer runs again with smaller ones."""

    def alter(model: torch.nn.Module) -> None:
        times("o_proj", 8192.0)(model)
        times("v_proj", 1 / 8192)(model)

    bundle = altered(compiler, tmp_path, alter)
    report = compare(bundle)
    assert report["max_relative_gradient_error"] <= 2e-2
    ordinary = compiler.bundle("llama", "mebp", TARGET, **HALF, weights="fp32")
    examples = written(tmp_path)
    counts = []
    for number, one in enumerate((bundle, ordinary)):
        arguments = ("--examples", examples, "--state", tmp_path / f"{number}", "--steps", 1)
        kernels = ran("train", one, *arguments, "--timings")["kernels"].values()
        counts.append(sum(kernel["dispatches"] for kernel in kernels))
    assert counts[0] > counts[1]


def written(folder: Path) -> Path:
    """The examples as a file."""
    rows = [([(tokens[:-1], tokens[1:])], 0) for tokens in engine_parity.EXAMPLES]
    return write_examples(folder / "examples.jsonl", rows)


def test_activations_beyond_fp16_are_one_message(compiler: Compiler, tmp_path: Path) -> None:
    bundle = altered(compiler, tmp_path, times("up_proj", 1e7))
    with Session.open(bundle, engine_name="vulkan") as session, data() as examples:
        session.attach(tmp_path / "run")
        with pytest.raises(ZoExportError, match="infinite or no number") as raised:
            session.train(examples, 1)
    assert "compute=fp32" in raised.value.fix and "program layer.0" in raised.value.where


def test_a_device_without_fp16_storage(compiler: Compiler, tmp_path: Path) -> None:
    """It runs bundles of fp32, refuses those of fp16 in one message, and is listed with what it lacks."""
    examples = written(tmp_path)
    environment = {**os.environ, **without_features()}

    def trained(compute: str) -> subprocess.CompletedProcess[str]:
        settings = {**HALF, "weights": "int4", "compute": compute}
        bundle = compiler.bundle("llama_tied", "mebp", TARGET, **settings)
        line = ["train", "--bundle", bundle, "--examples", examples, "--state", tmp_path / compute]
        return answer(runner_path(), *line, "--steps", 1, "--engine", "vulkan")

    def answer(*line: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*map(str, line)], capture_output=True, text=True, env=environment, timeout=120
        )

    exact, half = trained("fp32"), trained("fp16")
    assert exact.returncode == 0, exact.stderr
    assert half.returncode == 1 and half.stderr.count("error: ") == 1
    assert "storageBuffer16BitAccess" in half.stderr and "--engine executorch" in half.stderr
    listed = "from zoexport.session import vulkan_devices as v; print(v()[0]['lacks'])"
    assert "fp16 storage" in answer(sys.executable, "-c", listed).stdout
