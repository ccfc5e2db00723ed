"""Bundles of MLX functions in the session: the same steps as the methods' references."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support import engine_parity
from tests.support.compiled import Compiler
from tests.support.engine_parity import EXAMPLES, data
from tests.support.tiers import slow_after
from zoexport.core import manifest as manifests
from zoexport.core.errors import ConfigError, ZoExportError
from zoexport.core.files import sha256
from zoexport.ir.lengths import row_lengths
from zoexport.session import Dataset, Session

pytestmark = pytest.mark.parity
TARGET = "ios-mlx"
ALL = {"lora__target_modules": "all-linear", "weights": "int4"}
ARCHITECTURES = ("llama_tied", "gemma3", "qwen3", "olmo2", "phi3", "opt", "gpt2", "falcon", "bloom")
"""The unit tier has the functions of all of them."""


def compare(bundle: Path, steps: int = 20) -> dict[str, Any]:
    return engine_parity.compare(bundle, "mlx", steps)


@pytest.mark.parametrize("name", slow_after(2, ARCHITECTURES))
def test_mebp(compiler: Compiler, name: str) -> None:
    """Every tensor of every adapter against autograd over the same dequantized weights; batches of unequal rows."""
    steps = 20 if name in ("llama_tied", "olmo2", "phi3") else 5
    report = compare(compiler.bundle(name, "mebp", TARGET, **ALL), steps)
    assert report["max_relative_gradient_error"] <= 1e-4


@pytest.mark.parametrize(
    "settings",
    slow_after(
        2,
        [
            {"batch_size": 2, "gradient_accumulation_steps": 2, "loss": "choices"},
            {"optimizer": "sgd", "momentum": 0.9, "checkpoint_every": 2, "max_grad_norm": 0},
            {"weights": "fp32"},
            {"weights": "int8"},
            {
                "group_size": 64,
                "lora__target_modules": "attention",
                "lora__layers_to_transform": "last:1",
            },
            {"max_length": 48, "batch_size": 1},
        ],
    ),
    ids=lambda settings: ",".join(settings),
)
def test_settings_of_mebp(compiler: Compiler, settings: dict[str, Any]) -> None:
    compare(compiler.bundle("qwen2", "mebp", TARGET, **{**ALL, **settings}), steps=4)


@pytest.mark.parametrize("name", slow_after(1, ["llama_tied", "olmo2", "phi3", "mpt"]))
def test_prge(compiler: Compiler, name: str) -> None:
    compare(compiler.bundle(name, "prge", TARGET, weights="int4"))


@pytest.mark.parametrize("weights", slow_after(1, ["int8", "fp32"]))
@pytest.mark.parametrize("method", slow_after(1, ["prge", "mezo"]))
def test_zeroth_order_over_other_weights(compiler: Compiler, method: str, weights: str) -> None:
    compare(compiler.bundle("qwen2", method, TARGET, num_queries=2, weights=weights), steps=8)


@pytest.mark.parametrize("method", ["prge", "mezo"])
def test_zeroth_order_over_layers(compiler: Compiler, method: str) -> None:
    bundle = compiler.bundle(
        "llama", method, TARGET, granularity="layer", weights="int4", num_queries=2
    )
    compare(bundle, steps=8)


def test_a_batch_with_many_labels_takes_several_calls(compiler: Compiler) -> None:
    """Fewer labels in a call than a batch has: only its first call applies the pending update."""
    bundle = compiler.bundle("llama", "prge", TARGET, labels=8, num_queries=2)
    losses = []
    for path in (bundle, compiler.bundle("llama", "prge", num_queries=2)):
        with Session.open(path) as session, data() as examples:
            losses.append([session.step(examples, [0, 1, 2]).losses for _ in range(4)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


_THREADS = """
import sys, threading
from pathlib import Path
from zoexport.session import Dataset, Session
session, examples = Session.open(Path(sys.argv[1])), Dataset()
examples.add([(list(range(9)), list(range(1, 10)))], 0)
for _ in range(3):
    thread = threading.Thread(target=lambda: print(session.step(examples, [0]).loss))
    thread.start()
    thread.join()
"""


def test_a_session_moves_between_threads(compiler: Compiler) -> None:
    """Opened in one thread, called in others, as apps do; the session is the first in its process to use MLX."""
    bundle = compiler.bundle("llama", "mebp", TARGET, weights="int4")
    command = [sys.executable, "-c", _THREADS, str(bundle)]
    losses = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert len(losses) == 3 and float(losses[2]) < float(losses[0])


def test_a_function_for_each_distinct_layer_and_length(compiler: Compiler) -> None:
    bundle = compiler.bundle("gemma3", "mebp", TARGET, **{**ALL, "max_length": 48, "batch_size": 1})
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["engine"] == "mlx" and "mlx" in manifest["tools"]
    assert manifest["lengths"] == row_lengths(48) == [32, 48]
    files = {program["family"]: program["file"] for program in manifest["programs"]}
    assert len(set(files.values())) == len(files)
    # Functions hold no weights, however many layers call them.
    most = 100_000 * len(manifest["lengths"])
    assert all((bundle / file).stat().st_size < most for file in files.values())
    stored = load_file(bundle / "weights.safetensors")
    codes = [tensor for name, tensor in stored.items() if name.endswith(".codes")]
    assert codes and all(tensor.dtype == torch.uint32 for tensor in codes)


def altered(bundle: Path, folder: Path, change: Any, *, hashed: bool = True) -> Path:
    """A copy of a bundle with something changed; its manifest is right again where ``hashed``."""
    shutil.copytree(bundle, folder)
    path = folder / manifests.FILE
    content = json.loads(path.read_text("utf-8"))
    change(folder, content)
    for name, entry in content["files"].items() if hashed else ():
        entry.update(bytes=(folder / name).stat().st_size, sha256=sha256(folder / name))
    content["bundle_id"] = manifests.bundle_id(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    return folder


def shorten(_: Path, manifest: dict[str, Any]) -> None:
    """Rows of 23 tokens, which no function was traced for."""
    manifest["lengths"] = [23]
    for program in manifest["programs"]:
        program.update({"length": 23} if "length" in program else {})
        for value in program["inputs"] + program["outputs"]:
            if value["role"] not in ("state", "state_gradient"):
                value["shape"] = [23 if size == 24 else size for size in value["shape"]]


def first_step(bundle: Path) -> None:
    with Session.open(bundle) as session, Dataset() as examples:
        examples.add([(EXAMPLES[0][:-1], EXAMPLES[0][1:])], 0)
        session.step(examples, [0])


@pytest.mark.parametrize(
    ("change", "hashed", "message"),
    [
        (shorten, True, r"embedding.*no function for tokens \(3, 23\).*rows of this length"),
        (lambda f, _: (f / "layer_0.mlxfn").unlink(), False, "layer_0.mlxfn: found no such file"),
        (lambda f, _: flip(f / "layer_0.mlxfn"), False, "layer_0.mlxfn: found altered content"),
        (lambda f, _: flip(f / "weights.safetensors"), False, "weights.*found altered content"),
        (
            lambda f, _: (f / "layer_0.mlxfn").write_bytes(b"no function"),
            True,
            "layer_0.mlxfn.*found MLX: .*expected a function that MLX [0-9.]+ reads",
        ),
        (
            lambda f, _: shutil.copy(f / "head.mlxfn", f / "layer_0.mlxfn"),
            True,
            r"layer_0.mlxfn.*no function for hidden \(3, 24, 64\)",
        ),
    ],
    ids=["length", "missing", "altered", "altered weights", "no function", "other function"],
)
def test_one_clear_message(
    compiler: Compiler, tmp_path: Path, change: Any, hashed: bool, message: str
) -> None:
    bundle = compiler.bundle("llama", "mebp", TARGET, weights="int4")
    with pytest.raises(ZoExportError, match=message):
        first_step(altered(bundle, tmp_path / "bundle", change, hashed=hashed))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activations": "int8"}, "activations=int8"),
        ({"compute": "fp16"}, "takes compute=fp32"),
        ({"soc": "SM8650"}, "soc"),
    ],
)
def test_what_it_does_not_do(compiler: Compiler, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compiler.bundle("llama", "prge", TARGET, **settings)
