"""Core ML packages, read back from disk and evaluated, in the session: the same steps as the methods' references."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler, compile_tiny
from tests.support.engine_parity import passed
from tests.support.tiers import slow_after
from zoexport.api import Bundle
from zoexport.core import manifest as manifests
from zoexport.core.errors import BundleError, ConfigError, ZoExportError
from zoexport.core.files import sha256
from zoexport.session import Session
from zoexport.targets.coreml.functions import FunctionBuilder
from zoexport.testing import Package

pytestmark = pytest.mark.parity
TARGET = "ios-coreml"
ALL = {"lora__target_modules": "all-linear", "weights": "int4"}
EXACT = {**ALL, "compute": "fp32"}
ARCHITECTURES = ("llama_tied", "olmo2", "phi3", "gemma3", "gpt2", "falcon", "cohere")
PACKAGE = "model.mlpackage"
WEIGHTS = f"{PACKAGE}/Data/com.apple.CoreML/weights/weight.bin"


def compare(bundle: Path, steps: int = 3) -> dict[str, Any]:
    """Parity without progress; it passes."""
    report = passed(bundle, steps)
    assert report["runner"] == "session (coreml)"
    return report


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_mebp_in_fp32(compiler: Compiler, name: str) -> None:
    """Every tensor of every adapter against autograd over the same dequantized weights, over the whole schedule."""
    report = compare(compiler.bundle(name, "mebp", TARGET, **EXACT))
    assert report["max_relative_gradient_error"] <= 1e-4
    assert report["max_relative_loss_error"] <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama_tied", "olmo2", "phi3", "gemma2", "falcon"])
def test_mebp_in_fp16(compiler: Compiler, name: str) -> None:
    bundle = compiler.bundle(name, "mebp", TARGET, **ALL)
    assert json.loads((bundle / "manifest.json").read_text())["settings"]["compute"] == "fp16"
    assert compare(bundle)["max_relative_gradient_error"] <= 2e-2


@pytest.mark.parametrize(
    "settings",
    slow_after(
        1,
        [
            {"weights": "int8", "loss": "choices", "batch_size": 2},
            {
                "weights": "fp32",
                "lora__target_modules": "attention",
                "lora__layers_to_transform": "last:1",
            },
            {"group_size": 64, "checkpoint_every": 2, "gradient_accumulation_steps": 2},
        ],
    ),
    ids=lambda settings: ",".join(settings),
)
def test_settings_of_mebp(compiler: Compiler, settings: dict[str, Any]) -> None:
    compare(compiler.bundle("qwen2", "mebp", TARGET, **{**EXACT, **settings}))


@pytest.mark.parametrize(
    ("name", "method", "settings"),
    slow_after(
        2,
        [
            ("olmo2", "prge", {"weights": "int8"}),
            ("qwen2", "prge", {"granularity": "layer", "num_queries": 2}),
            ("llama_tied", "prge", {}),
            ("phi3", "mezo", {"num_queries": 2}),
        ],
    ),
)
def test_zeroth_order(compiler: Compiler, name: str, method: str, settings: dict[str, Any]) -> None:
    values = {"weights": "int4", "compute": "fp32", **settings}
    report = compare(compiler.bundle(name, method, TARGET, **values), steps=5)
    assert report["max_relative_loss_error"] <= 1e-4


@pytest.mark.slow
def test_every_weight_is_stored_once(compiler: Compiler) -> None:
    """Both directions read the same bytes, and the tied table is the output head."""
    bundle = compiler.bundle("llama_tied", "mebp", TARGET, **ALL)
    functions = Package(bundle / PACKAGE).functions
    assert {"model_layers_0_24", "model_layers_0_backward_24", "head_backward"} <= {*functions}
    # The same codes and scales as the file of another target, which has nothing else but norms and tables.
    other = compiler.bundle("llama_tied", "mebp", "host", **ALL)
    packed = (other / "weights.safetensors").stat().st_size
    assert (bundle / WEIGHTS).stat().st_size <= 1.05 * packed


def test_layers_of_one_shape_are_converted_once(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The others are copies with their own weights, as the gradients above show."""
    built = []
    build = FunctionBuilder.build

    def counted(builder: FunctionBuilder) -> Any:
        built.append(builder.program.name)
        return build(builder)

    monkeypatch.setattr(FunctionBuilder, "build", counted)
    bundle = tmp_path / "bundle"
    compile_tiny(compiler.model("llama"), bundle, "mebp", TARGET, **ALL)
    assert built == ["embedding@24", "model.layers.0@24", "model.layers.0.backward@24", *built[3:]]
    assert len(built) < len(Package(bundle / PACKAGE).functions)


def test_the_manifest_says_what_a_phone_must_know(compiler: Compiler) -> None:
    bundle = compiler.bundle("llama_tied", "mebp", TARGET, **ALL)
    manifest = Bundle.open(bundle).manifest
    assert manifest["minimum_os"] == {"ios": "18.0", "macos": "15.0"}
    assert manifest["engine"] == "coreml" and "weights" not in manifest
    package = Package(bundle / PACKAGE)
    assert {program["entry_point"] for program in manifest["programs"]} == {*package.functions}
    for program in manifest["programs"]:
        assert len(package.inputs(program["entry_point"])) == len(program["inputs"])
        assert len(package.outputs(program["entry_point"])) == len(program["outputs"])


def test_no_engine_here_runs_it(compiler: Compiler) -> None:
    bundle = compiler.bundle("llama_tied", "mebp", TARGET, **ALL)
    with pytest.raises(BundleError, match="engine coreml"):
        Session.open(bundle)


def altered(bundle: Path, folder: Path, change: Any) -> Path:
    """A copy of a bundle whose manifest is changed, and right again."""
    shutil.copytree(bundle, folder)
    path = folder / manifests.FILE
    content = json.loads(path.read_text("utf-8"))
    change(content)
    for name, entry in content["files"].items():
        entry.update(bytes=(folder / name).stat().st_size, sha256=sha256(folder / name))
    content["bundle_id"] = manifests.bundle_id(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    return folder


def widen(manifest: dict[str, Any]) -> None:
    """Another vocabulary's labels: two of them more in a call than the head was built for."""
    manifest["label_rows"] += 2
    for program in manifest["programs"]:
        for value in program["inputs"] + program["outputs"]:
            if program["name"].startswith("head") and value["role"] not in ("state", "weight"):
                value["shape"][0] += 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["programs"][1].update(entry_point="nothing"), "nothing.*model_layers_0_24"),
        (widen, "head"),
    ],
    ids=["missing function", "wrong shape"],
)
def test_what_the_package_does_not_have(
    compiler: Compiler, tmp_path: Path, change: Any, message: str
) -> None:
    bundle = altered(compiler.bundle("llama_tied", "mebp", TARGET, **ALL), tmp_path / "b", change)
    with pytest.raises(ZoExportError, match=message):
        Bundle.open(bundle).parity(steps=1)


def test_a_package_altered_on_disk(compiler: Compiler, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(compiler.bundle("llama_tied", "mebp", TARGET, **ALL), bundle)
    content = bytearray((bundle / WEIGHTS).read_bytes())
    content[-100] ^= 1
    (bundle / WEIGHTS).write_bytes(content)
    with pytest.raises(BundleError, match=r"weight.bin.*SHA-256"):
        Bundle.open(bundle).parity(steps=1)


@pytest.mark.parametrize("settings", [{"activations": "int8"}, {"soc": "SM8650"}])
def test_what_it_does_not_do(compiler: Compiler, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        compiler.bundle("llama", "prge", TARGET, **settings)
