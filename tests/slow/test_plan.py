"""Planned memory against what the kernel says of a process that steps."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.masks import write_random_mask
from tests.support.tiny_models import from_config, tiny_config
from zoexport.compiler.build import compile_bundle
from zoexport.core.memory import anonymous_peak
from zoexport.targets.executorch import footprints
from zoexport.tools.bench.matrix import Shape
from zoexport.tools.bench.runner import run_steps
from zoexport.tools.bench.workload import examples_file
from zoexport.tools.plan import plan_training

pytestmark = pytest.mark.slow

WITHIN = 0.15
THREADS = 1

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system does not say how much memory is used"
)


def _planned(
    model: str, method: str, settings: dict[str, str], target: str = "host"
) -> dict[str, Any]:
    return plan_training(
        model,
        method=method,
        target=target,
        settings=settings,
        process="runner",
        threads=THREADS,
        progress=lambda *_: None,
    )


def _measured(
    model: str, method: str, settings: dict[str, str], folder: Path, target: str = "host"
) -> float | None:
    bundle = folder / "bundle"
    compile_bundle(
        model,
        method=method,
        target=target,
        output=bundle,
        settings=settings,
        recipe=None,
        force=False,
        progress=lambda *_: None,
    )
    manifest = json.loads((bundle / "manifest.json").read_text())
    chosen = manifest["settings"]
    shape = Shape(chosen["max_length"], chosen["batch_size"], chosen.get("num_queries", 1))
    examples = examples_file(folder, shape, manifest["model"]["vocab_size"])
    return run_steps(bundle, examples, threads=THREADS, steps=2, warmup=0).peak_anonymous_mb


@pytest.fixture(scope="module")
def medium(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough for its tensors to be most of the memory; without weights."""
    folder = tmp_path_factory.mktemp("plan") / "medium"
    changes = {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 1024}
    tiny_config("llama", **changes, max_position_embeddings=512).save_pretrained(folder)
    return folder


@needs_proc
@pytest.mark.parity
@pytest.mark.parametrize(
    ("target", "method", "given"),
    [
        (
            "host",
            "mebp",
            {"max_length": "256", "batch_size": "2", "lora.target_modules": "all-linear"},
        ),
        (
            "host",
            "mebp",
            {"max_length": "160", "batch_size": "3", "weights": "fp32", "activation_cache_mb": "0"},
        ),
        (
            "host",
            "mezo",
            {"max_length": "256", "batch_size": "4", "num_queries": "1"},
        ),
        ("host", "prge", {"max_length": "64", "batch_size": "4", "num_queries": "4"}),
        ("host", "mezo", {"max_length": "128", "batch_size": "16", "num_queries": "1"}),
        ("ios-mlx", "mebp", {"max_length": "256", "lora.target_modules": "all-linear"}),
        ("ios-mlx", "prge", {"max_length": "64", "batch_size": "4", "num_queries": "2"}),
    ],
)
def test_planned_memory_is_what_is_measured(
    target: str,
    method: str,
    given: dict[str, str],
    medium: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plan is for the processor that takes most, one with AMX; without them, its tiles are left out."""
    if "amx_tile" not in Path("/proc/cpuinfo").read_text():
        monkeypatch.setattr(footprints, "_TILED_BYTES", 0)
    whole = Path(shutil.copytree(medium, tmp_path / "model"))
    config = tiny_config("llama", **json.loads((medium / "config.json").read_text()))
    from_config(config).save_pretrained(whole)
    found = _planned(str(medium), method, given, target)["peak_anonymous_mb"]
    measured = _measured(str(whole), method, given, tmp_path, target)
    assert found == pytest.approx(measured, rel=WITHIN)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """107 million random weights in bfloat16, beside a mask of some of them."""
    folder = tmp_path_factory.mktemp("compile") / "large"
    config = tiny_config(
        "llama",
        vocab_size=8192,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        max_position_embeddings=512,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(folder)
    write_random_mask(folder, folder.parent / "mask", density=1e-3)
    return folder


@needs_proc
@pytest.mark.parametrize(
    ("target", "method", "given"),
    [
        ("host", "senszoq", {"mask": "mask"}),
        ("host", "mezo", {}),
        ("ios-mlx", "senszoq", {"mask": "mask"}),
    ],
)
def test_compiling_takes_what_was_planned(
    target: str, method: str, given: dict[str, str], large: Path, tmp_path: Path
) -> None:
    found = _planned(str(large), method, given, target)["compile_peak_anonymous_mb"]
    line = [sys.executable, "-m", "zoexport", "compile", str(large), "--target", target]
    line += ["--method", method, *(f"--set={key}={value}" for key, value in given.items())]
    line += ["-o", str(tmp_path / "bundle")]
    with (
        subprocess.Popen(line, cwd=large.parent, stderr=subprocess.DEVNULL) as process,
        anonymous_peak(process.pid) as peak,
    ):
        assert process.wait() == 0
        measured = peak()
    assert found == pytest.approx(measured, rel=WITHIN)


@needs_proc
@pytest.mark.network
def test_smollm2_takes_what_was_planned(tmp_path: Path) -> None:
    given = {"max_length": "128", "lora.target_modules": "all-linear"}
    found = _planned("smollm2-135m", "mebp", given)["peak_anonymous_mb"]
    assert found == pytest.approx(_measured("smollm2-135m", "mebp", given, tmp_path), rel=WITHIN)
