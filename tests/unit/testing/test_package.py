"""Core ML packages: read back from disk, run by function, refused with one clear error, and run by a session."""

from __future__ import annotations

import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.coreml_packages import FP16, FP32, INT32, int4, mb, quantized, save
from zoexport.core.coreml_names import feature_name
from zoexport.core.errors import BundleError, ConfigError
from zoexport.testing import Feature, Package, operations

RANDOM = np.random.default_rng(4)
CODES = RANDOM.integers(-8, 8, (64, 96))
SCALE = RANDOM.uniform(0.01, 0.1, (64, 3)).astype(np.float32)
WEIGHT = CODES.astype(np.float32) * np.repeat(SCALE, 32, axis=1)
X = RANDOM.normal(size=(2, 96)).astype(np.float32)
DY = RANDOM.normal(size=(2, 64)).astype(np.float32)
WEIGHT_FILE = Path("Data", "com.apple.CoreML", "weights", "weight.bin")
SPEC_FILE = Path("Data", "com.apple.CoreML", "model.mlmodel")


def shared_weight() -> Any:
    return quantized(int4(CODES), SCALE, shared="proj")


def forward(given: Mapping[str, Any]) -> dict[str, Any]:
    y = mb.linear(x=given["x"], weight=shared_weight())
    return {"y": y, "gate": mb.silu(x=y)}


def backward(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"dx": mb.matmul(x=given["dy"], y=shared_weight())}


def halves(given: Mapping[str, Any]) -> dict[str, Any]:
    """A chain in fp16, whose result depends on what each operation is rounded to."""
    weight = quantized(int4(CODES), SCALE.astype(np.float16))
    hidden = mb.linear(x=mb.mul(x=given["x"], y=given["x"]), weight=weight)
    return {"y": mb.exp(x=mb.softmax(x=hidden, axis=-1))}


def embedded(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"rows": mb.gather(x=shared_weight(), indices=given["tokens"], axis=0)}


def unknown_operation(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"y": mb.atanh(x=given["x"])}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    functions: dict[str, Any] = {
        "forward": ({"x": ((2, 96), FP32)}, forward),
        "backward": ({"dy": ((2, 64), FP32)}, backward),
        "halves": ({"x": ((2, 96), FP16)}, halves),
        "embedded": ({"tokens": ((3,), INT32)}, embedded),
        "unknown": ({"x": ((2,), FP32)}, unknown_operation),
    }
    return save(tmp_path_factory.mktemp("coreml") / "model.mlpackage", functions)


@pytest.fixture
def package(path: Path) -> Package:
    return Package(path)


@pytest.fixture
def copied(path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(path, tmp_path / "copy.mlpackage"))


def test_a_package_says_what_its_functions_take_and_give(package: Package) -> None:
    assert package.functions == ("backward", "embedded", "forward", "halves", "unknown")
    assert package.inputs("forward") == (Feature("x", "fp32", (2, 96)),)
    assert package.outputs("forward") == (
        Feature("y", "fp32", (2, 64)),
        Feature("gate", "fp32", (2, 64)),
    )
    assert package.inputs("embedded") == (Feature("tokens", "int32", (3,)),)
    assert package.outputs("halves") == (Feature("y", "fp16", (2, 64)),)


def test_functions_share_a_quantized_weight(package: Package, path: Path) -> None:
    y = package.run("forward", {"x": X})["y"]
    np.testing.assert_allclose(y, X @ WEIGHT.T, rtol=1e-6, atol=1e-5)
    dx = package.run("backward", {"dy": DY})["dx"]
    np.testing.assert_allclose(dx, DY @ WEIGHT, rtol=1e-6, atol=1e-5)
    rows = package.run("embedded", {"tokens": np.array([5, 0, 63], np.int32)})["rows"]
    np.testing.assert_array_equal(rows, WEIGHT[[5, 0, 63]])
    # The file has one copy of the codes (4 bits each) for these three functions and one for `halves`.
    assert (path / WEIGHT_FILE).stat().st_size < 3 * CODES.size // 2


def test_fp16_is_rounded_after_every_operation(package: Package) -> None:
    x = torch.from_numpy(X).half()
    weight = (
        torch.from_numpy(CODES).float()
        * torch.from_numpy(SCALE).half().float().repeat_interleave(32, 1)
    ).half()
    squared = (x.float() * x.float()).half()
    hidden = (squared.float() @ weight.float().T).half()
    expected = hidden.float().softmax(-1).half().float().exp().half()
    found = package.run("halves", {"x": x.numpy()})["y"]
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, expected.numpy())


def test_only_what_is_asked_for_is_computed(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(operations.RULES, "silu")  # type: ignore[arg-type]
    with pytest.raises(BundleError, match="without a rule: silu"):
        Package(package.folder).run("forward", {"x": X}, ["y"])
    monkeypatch.undo()
    package.open("forward")

    def refuse(_: Any) -> torch.Tensor:
        raise AssertionError("computed")

    monkeypatch.setitem(operations.RULES, "silu", refuse)  # type: ignore[arg-type]
    assert [*package.run("forward", {"x": X}, ["y"])] == ["y"]


def test_inputs_are_not_changed_and_outputs_are_not_the_inputs(tmp_path: Path) -> None:
    path = save(
        tmp_path / "p.mlpackage", {"same": ({"x": ((2,), FP32)}, lambda given: {"y": given["x"]})}
    )
    x = np.ones(2, np.float32)
    y = Package(path).run("same", {"x": x})["y"]
    y += 1
    assert x.tolist() == [1, 1]


def test_one_dequantized_weight_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = RANDOM.integers(-8, 8, (6, 32, 32))

    def build(given: Mapping[str, Any]) -> dict[str, Any]:
        made = [quantized(int4(codes), np.ones((32, 1), np.float32)) for codes in weights]
        x = given["x"]
        for weight in made:
            x = mb.linear(x=x, weight=weight)
        return {"y": x}

    package = Package(save(tmp_path / "p.mlpackage", {"deep": ({"x": ((1, 32), FP32)}, build)}))
    rule = operations.RULES["constexpr_blockwise_shift_scale"]
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def counted(given: Any) -> torch.Tensor:
        nonlocal most
        result = rule(given)
        assert isinstance(result, torch.Tensor)
        alive.append(weakref.ref(result))
        most = max(most, sum(reference() is not None for reference in alive))
        return result

    monkeypatch.setitem(operations.RULES, "constexpr_blockwise_shift_scale", counted)  # type: ignore[arg-type]
    package.run("deep", {"x": np.ones((1, 32), np.float32)})
    assert (len(alive), most) == (len(weights), 1)


@pytest.mark.parametrize(
    ("function", "inputs", "message"),
    [
        (
            "forwards",
            {},
            "no function 'forwards'.*backward, embedded, forward.*Did you mean 'forward'",
        ),
        ("forward", {}, "function 'forward'.*no input 'x'"),
        ("forward", {"x": X, "z": X}, "no input 'z'.*expected one of x"),
        ("forward", {"x": X[:1]}, r"input 'x'.*float32 \(1, 96\).*fp32 \(2, 96\)"),
        ("forward", {"x": X.astype(np.float64)}, r"input 'x'.*float64 \(2, 96\).*fp32"),
        ("halves", {"x": X}, r"input 'x'.*float32.*fp16"),
        (
            "embedded",
            {"tokens": np.array([1, 2, 64], np.int32)},
            r"\(gather\).*index 64 is out of bounds",
        ),
        ("unknown", {"x": X}, "function 'unknown'.*without a rule: atanh"),
    ],
)
def test_what_a_function_does_not_take_is_refused(
    package: Package, function: str, inputs: dict[str, NDArray[Any]], message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        package.run(function, inputs)


def test_an_unknown_output_is_refused(package: Package) -> None:
    with pytest.raises(BundleError, match=r"no output 'gates'.*y, gate.*Did you mean 'gate'"):
        package.run("forward", {"x": X}, ["gates"])


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "no such folder"),
        (lambda folder: (folder / "Manifest.json").unlink(), "no Manifest.json"),
        (lambda folder: (folder / "Manifest.json").write_text("{}"), "copy.mlpackage"),
        (lambda folder: (folder / SPEC_FILE).unlink(), "copy.mlpackage"),
        (lambda folder: truncate(folder / SPEC_FILE, 500), "copy.mlpackage"),
        (lambda folder: truncate(folder / SPEC_FILE, 0), "a model of the kind None"),
        (lambda folder: (folder / WEIGHT_FILE).unlink(), "weight.bin: found no such file"),
        (lambda folder: truncate(folder / WEIGHT_FILE, 0), "weight.bin: found an empty file"),
        (lambda folder: truncate(folder / WEIGHT_FILE, 100), "weight.bin: found 100 bytes"),
        (lambda folder: truncate(folder / WEIGHT_FILE, 1000), "weight.bin: found 1000 bytes"),
        (
            lambda folder: (folder / WEIGHT_FILE).write_bytes(b"\1\0\0\0\2" + bytes(5000)),
            r"weight.bin: found no constant at \d+",
        ),
        (
            lambda folder: (folder / WEIGHT_FILE).write_bytes(b"\1\0\0\0\7" + bytes(5000)),
            "weight.bin: found storage version 7",
        ),
    ],
)
def test_a_damaged_package_is_refused(
    copied: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(copied)
    with pytest.raises(BundleError, match=message):
        Package(copied).open("forward")


def test_weights_of_another_type_are_refused(copied: Path) -> None:
    content = bytearray((copied / WEIGHT_FILE).read_bytes())
    content[68] = 4  # the type of the first constant: int8, where the program says int4
    (copied / WEIGHT_FILE).write_bytes(content)
    with pytest.raises(BundleError, match=r"of the type 4 at 64; expected .* elements of int4"):
        Package(copied).open("forward")


def other_type(block: Any) -> None:
    block.operations[-1].outputs[0].type.tensorType.dataType = 12  # FLOAT64


def other_name(block: Any) -> None:
    block.operations[-1].inputs["x"].arguments[0].name = "nowhere"


def longer_constant(block: Any) -> None:
    axis = next(found for found in block.operations if found.outputs[0].name.startswith("softmax"))
    axis.attributes["val"].immediateValue.tensor.ints.values.append(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_type, r"\(identity\): found elements of the type FLOAT64"),
        (other_name, "function 'halves': found the name 'nowhere', which nothing makes"),
        (longer_constant, r"\(const\): found 2 ints of int32 \(\), which has 1"),
    ],
)
def test_a_program_that_makes_no_sense_is_refused(
    copied: Path, change: Callable[[Any], None], message: str
) -> None:
    from coremltools.proto import Model_pb2

    spec = Model_pb2.Model.FromString((copied / SPEC_FILE).read_bytes())
    function = spec.mlProgram.functions["halves"]
    change(function.block_specializations[function.opset])
    (copied / SPEC_FILE).write_bytes(spec.SerializeToString())
    with pytest.raises(BundleError, match=message):
        Package(copied).run("halves", {"x": X.astype(np.float16)})


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.zeros(2, 63), r"a result of the shape \(2, 63\), declared fp32 \(2, 64\)"),
        (torch.zeros(2, 64, dtype=torch.int32), r"a result of torch.int32, declared fp32"),
        ((torch.zeros(2, 64), torch.zeros(2, 64)), "2 results of 1"),
    ],
)
def test_a_rule_that_does_not_give_what_is_declared_is_seen(
    package: Package, monkeypatch: pytest.MonkeyPatch, result: Any, message: str
) -> None:
    monkeypatch.setitem(operations.RULES, "silu", lambda _: result)  # type: ignore[arg-type]
    with pytest.raises(BundleError, match=message):
        package.run("forward", {"x": X})


def test_a_mode_without_a_rule_is_refused(tmp_path: Path) -> None:
    def build(given: Mapping[str, Any]) -> dict[str, Any]:
        x = given["x"]
        at = np.array([0], np.int32)
        return {"y": mb.scatter(data=x, indices=at, updates=np.ones(1, np.float32), mode="max")}

    path = save(tmp_path / "p.mlpackage", {"most": ({"x": ((2,), FP32)}, build)})
    with pytest.raises(BundleError, match=r"\(scatter\): found mode 'max'"):
        Package(path).run("most", {"x": np.zeros(2, np.float32)})


def test_without_coremltools_the_error_says_what_to_install(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "coremltools", None)
    with pytest.raises(ConfigError, match=r"zoexport\[ios-coreml\]"):
        Package(path)


def test_a_model_of_another_kind_is_refused(copied: Path) -> None:
    from coremltools.proto import Model_pb2

    spec = Model_pb2.Model()
    spec.identity.SetInParent()
    (copied / SPEC_FILE).write_bytes(spec.SerializeToString())
    with pytest.raises(BundleError, match="a model of the kind identity"):
        Package(copied)


def test_zoexport_does_not_import_coremltools() -> None:
    code = "import sys, zoexport, zoexport.testing; sys.exit('coremltools' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tokens", "tokens"),
        ("lora_B.model.layers.0.q-proj", "lora_B_model_layers_0_q_proj"),
        ("0.weight", "v_0_weight"),
        ("_hidden", "v__hidden"),
        ("état", "v__tat"),
        ("state", "v_state"),
    ],
)
def test_a_feature_name_is_one_that_coremltools_keeps(name: str, expected: str) -> None:
    from coremltools.converters.mil.mil.passes.defs.preprocess import NameSanitizer

    assert feature_name(name) == expected
    assert NameSanitizer().sanitize_name(expected, allow_prefix_underscore=False) == expected
