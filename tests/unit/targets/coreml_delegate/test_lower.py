"""Programs lowered through ExecuTorch's Core ML delegate: read back from the .pte, evaluated, and what a bundle says.

The delegates are evaluated operation by operation: that compares the package which the delegate holds, not what
ExecuTorch or Core ML compute.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import coremltools as ct
import pytest
import torch
from coremltools.proto import MIL_pb2

from tests.support.splits import LONGEST, arguments, difference, state, tiny_graph
from tests.support.tiny_models import fixed, from_config, save_tiny, tiny_config
from zoexport.build import plan, training_graph
from zoexport.cli.main import run
from zoexport.core import manifest
from zoexport.core.errors import BundleError, ConfigError, LoweringError
from zoexport.core.types import Lowered, TrainingGraph
from zoexport.coreml.delegates import DelegatedFile
from zoexport.ir.samples import sample_inputs
from zoexport.targets.coreml_delegate import lower as lowering
from zoexport.targets.coreml_delegate.lower import NOT_RUN
from zoexport.targets.coreml_parts import parts_of

ENGINE = {"engine": "executorch"}
BOUND = 5e-6


def silent(*_: Any) -> None:
    """Progress that nobody reads."""


def lowered(graph: TrainingGraph, folder: Path) -> tuple[Lowered, DelegatedFile]:
    """A graph's .pte, read back."""
    found = lowering.lower_coreml_delegate(graph, folder, silent)
    return found, DelegatedFile(folder / "model.pte")


def one_layer(name: str, **settings: str) -> TrainingGraph:
    """A copy of a tiny model's split graph, of its first decoder layer and the output head."""
    graph, _ = tiny_graph(name, target="ios-coreml", **settings)
    stages = [graph.stages[1], graph.stages[-1]]
    return dataclasses.replace(graph, programs=dict(graph.programs), stages=stages)


def whole(name: str, method: str = "prge", **settings: str) -> TrainingGraph:
    """The programs of a zeroth-order method over a tiny model of one layer."""
    values = {"seq_len": "24", "batch": "2", "lora.rank": "4", "queries": "2", **settings}
    planned = plan(method, "ios-coreml", {**values, **ENGINE})
    model = from_config(tiny_config(name, num_hidden_layers=1))
    return training_graph(planned, model, silent)


def check(
    file: DelegatedFile, entry: dict[str, Any], values: list[torch.Tensor], expected: Any
) -> None:
    """A method gives ``expected`` of ``values``, both in the order and of the types that the manifest says."""
    called = file.method(entry["method"])
    taken = {feature.name: feature for feature in file.package.inputs(called.function)}
    given = {}
    for name, declared, value in zip(called.inputs, entry["inputs"], values, strict=True):
        assert name is not None
        kind = {"int64": "int32", "float32": "fp32"}[declared["dtype"]]
        assert (taken[name].dtype, list(taken[name].shape)) == (kind, declared["shape"])
        given[name] = (value.int() if value.dtype == torch.int64 else value).numpy()
    found = file.package.run(called.function, given)
    for name, theirs in zip(called.outputs, expected, strict=True):
        assert difference(torch.from_numpy(found[name]), theirs) < BOUND


def codes(file: DelegatedFile) -> dict[str, list[tuple[int, int]]]:
    """The quantized weights by function: the type of each one's codes, and where the weight file has them."""
    functions = ct.utils.load_spec(str(file.package.folder)).mlProgram.functions
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in functions}
    for name, function in functions.items():
        for operation in function.block_specializations[function.opset].operations:
            if operation.type == "constexpr_blockwise_shift_scale":
                data = operation.inputs["data"].arguments[0].value
                found[name].append((data.type.tensorType.dataType, data.blobFileValue.offset))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["llama", "gemma3", "gpt2", pytest.param("phi", marks=pytest.mark.slow)]
)
def test_backpropagation_is_one_delegate_a_program(name: str, tmp_path: Path) -> None:
    graph = one_layer(name, weights="int4", lora__targets="attention")
    longest = {p.family: p for p in graph.programs.values() if p.length in (None, LONGEST)}
    programs = [
        longest[family] for stage in graph.stages for family in (stage.forward, stage.backward)
    ]
    values = [arguments(graph, program) for program in programs]
    found, file = lowered(graph, tmp_path)
    assert [len(parts) for parts in found.delegates.values()] == [1, 1, 1, 1]
    assert not any(found.fallback_ops.values()) and not found.required_ops
    for entry, program, tensors in zip(found.programs, programs, values, strict=True):
        named = zip(program.inputs, tensors, strict=True)
        given = [tensor for value, tensor in named if value.role != "weight"]
        check(file, entry, given, program.module(*tensors))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("llama", "prge"),
        pytest.param("gemma3", "prge", marks=pytest.mark.slow),
        pytest.param("qwen2", "mezo", marks=pytest.mark.slow),
    ],
)
def test_zeroth_order_training_is_one_delegate_a_program(
    name: str, method: str, tmp_path: Path
) -> None:
    graph = whole(name, method)
    expected = {}
    for part in parts_of(graph):
        program = part.program
        values = sample_inputs(dataclasses.replace(graph, initial=state(graph)), program)
        for value in program.arguments():
            if value.role not in ("state", "tokens", "label_tokens", "label_positions"):
                values[value.name] = fixed(value.name, value.sizes())
        named = {**part.weights(), **values}
        results = program.module(*(named[value.name] for value in program.inputs))
        expected[program.name] = ([values[v.name] for v in program.arguments()], results)
    found, file = lowered(graph, tmp_path)
    assert [len(parts) for parts in found.delegates.values()] == [1, 1]
    assert not any(found.fallback_ops.values()) and not found.required_ops
    for entry in found.programs:
        check(file, entry, *expected[entry["name"]])


def test_a_norm_whose_weights_are_trained(tmp_path: Path) -> None:
    """Core ML's own takes constants alone; its other inputs are as they were."""
    settings = {"train": "full", "split": "head", "perturbations": "1,1", "seq_len": "24"}
    model = from_config(tiny_config("opt", num_hidden_layers=1))
    graph = training_graph(plan("spzo", "ios-coreml", {**settings, **ENGINE}), model, silent)
    graph = dataclasses.replace(graph, stages=graph.stages[1:])
    part, _ = parts_of(copy.deepcopy(graph))
    taken = part.program.arguments()
    assert {"final_layer_norm.weight", "final_layer_norm.bias"} < {value.name for value in taken}
    given = {value.name: fixed(value.name, value.sizes()) for value in taken}
    named = {**part.weights(), **given}
    expected = part.program.module(*(named[value.name] for value in part.program.inputs))
    found, file = lowered(graph, tmp_path)
    entry, _ = found.programs
    check(file, entry, [*given.values()], expected)


@pytest.mark.slow
def test_int4_stays_int4_and_is_stored_once(tmp_path: Path) -> None:
    """Both directions of a layer read the same bytes, and the table of tokens is the tied head."""
    graph, _ = tiny_graph(
        "llama_tied", target="ios-coreml", weights="int4", lora__targets="attention"
    )
    stages = [graph.stages[0], graph.stages[1], graph.stages[-1]]
    copied = dataclasses.replace(graph, programs=dict(graph.programs), stages=stages)
    _, file = lowered(copied, tmp_path)
    found = codes(file)
    assert {kind for each in found.values() for kind, _ in each} == {MIL_pb2.DataType.INT4}
    assert found["model_layers_0_48"] == found["model_layers_0_backward_48"]
    assert len({*found["model_layers_0_48"]}) == 7
    assert found["embedding_48"] == found["head"] == found["head_backward"]


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "kinds"), [("int8", {MIL_pb2.DataType.INT8}), ("fp32", set())])
def test_other_weights(weights: str, kinds: set[int], tmp_path: Path) -> None:
    graph = one_layer("llama", weights=weights, lora__targets="attention")
    graph.stages = graph.stages[1:]
    longest = {program.family: program for program in graph.programs.values()}
    values = arguments(graph, longest["head.backward"])
    found, file = lowered(graph, tmp_path)
    assert {kind for each in codes(file).values() for kind, _ in each} == kinds
    program, entry = longest["head.backward"], found.programs[1]
    named = zip(program.inputs, values, strict=True)
    given = [tensor for value, tensor in named if value.role != "weight"]
    check(file, entry, given, program.module(*values))
    assert found.packing == {"int8": "coreml-int8-fp32", "fp32": "fp32"}[weights]


def test_defaults() -> None:
    config = plan("mebp", "ios-coreml", ENGINE).config
    assert (config.weights, config.activations, config.compute) == ("int4", "fp32", "fp32")
    assert plan("mebp", "ios-coreml", ENGINE).target.engine == "executorch"
    chosen = plan("mebp", "ios-coreml", {})
    assert (chosen.target.engine, chosen.config.engine) == ("coreml", "coreml")
    assert plan("mebp", "ios-coreml", {"engine": "coreml"}).config == chosen.config
    assert plan("mebp", "host", ENGINE).config.engine == "executorch"


@pytest.mark.parametrize(
    ("target", "settings", "message"),
    [
        ("ios-coreml", {**ENGINE, "compute": "fp16"}, "rounds every operation of a program alike"),
        ("ios-coreml", {**ENGINE, "activations": "int8"}, "takes activations=fp32"),
        ("ios-coreml", {**ENGINE, "soc": "SM8650"}, "has no choice of soc"),
        ("ios-coreml", {"engine": "mlx"}, "coreml, executorch, vulkan"),
        ("ios-mlx", ENGINE, "target ios-mlx takes engine=mlx"),
        ("android-gpu", {"engine": "coreml"}, "target android-gpu takes engine=vulkan"),
        ("host", {"engine": "coreml"}, "Leave engine out, or choose engine=executorch"),
    ],
)
def test_what_cannot_be_lowered_is_said_before_compiling(
    target: str, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan("prge", target, settings)


@pytest.mark.parametrize(
    "missing", ["coremltools", "executorch.backends.apple.coreml.executorchcoreml"]
)
def test_what_is_not_installed_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import util

    known = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == missing else known(name))
    with pytest.raises(ConfigError, match=f"the package {missing} is not installed"):
        plan("mebp", "ios-coreml", ENGINE)


def test_an_operator_that_the_delegate_does_not_take_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = one_layer("llama", weights="fp32", lora__targets="attention")
    graph.stages = graph.stages[1:]
    monkeypatch.setattr(lowering, "write_for_coreml", lambda _, weights: dict(weights))
    with pytest.raises(LoweringError, match=r"does not support the op .*label_logprobs") as error:
        lowered(graph, tmp_path)
    assert error.value.where == "lowering to Core ML"


def test_a_refusal_of_the_converter_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("no such\nthing")

    graph = one_layer("llama", weights="fp32", lora__targets="attention")
    graph.stages = graph.stages[1:]
    monkeypatch.setattr(ct, "convert", refuse)
    with pytest.raises(LoweringError, match="ValueError: no such") as error:
        lowered(graph, tmp_path)
    assert error.value.where == "lowering to Core ML"


@pytest.mark.slow
def test_operators_that_are_left_whole_are_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ExecuTorch adds the list of one call to itself, which a call for each program keeps short."""
    from executorch import exir

    sizes, to_edge = [], exir.to_edge

    def counted(programs: Any, compile_config: Any) -> Any:
        made = to_edge(programs, compile_config=compile_config)
        sizes.append(len(compile_config.preserve_ops))
        return made

    monkeypatch.setattr(exir, "to_edge", counted)
    lowered(one_layer("llama", weights="int4", lora__targets="attention"), tmp_path)
    assert len(sizes) == 4 and max(sizes) < 200


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's bundle with the target's defaults; its rows are short."""
    folder = tmp_path_factory.mktemp("delegate")
    model, made = save_tiny("llama_tied", folder / "tiny"), folder / "bundle"
    line = ["compile", str(model), "--target", "ios-coreml", "--set", "seq_len=32"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert run([*line, "--set", "engine=executorch", "-o", str(made)]) == 0
    assert f"Note: {NOT_RUN}." in out.getvalue().splitlines()
    return made


def test_a_bundle_says_what_it_is_and_that_it_was_not_run(
    bundle: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = manifest.read(bundle, verify_files=True)
    assert (found["target"], found["engine"]) == ("ios-coreml", "executorch")
    assert (found["backends"], found["notes"][0]) == (["CoreMLBackend"], NOT_RUN)
    assert found["minimum_os"] == {"ios": "18.0", "macos": "15.0"}
    assert found["packing"] == "coreml-int4-g32-fp32"
    assert {program["file"] for program in found["programs"]} == {"model.pte"}
    assert {len(parts) for parts in found["delegate_list"].values()} == {1}
    assert "weights" not in found and {"executorch", "coremltools"} <= found["tools"].keys()
    assert run(["inspect", str(bundle)]) == 0
    assert f"Note: {NOT_RUN}." in capfd.readouterr().out.splitlines()


def test_parity_evaluates_the_delegates(bundle: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["parity", str(bundle), "--steps", "2", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["passed"] and report["max_relative_gradient_error"] <= 1e-4


def test_training_it_here_is_one_clear_error(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "The film is a warm story."}\n')
    training = ["--data", str(data), "--state", str(tmp_path / "state"), "--steps", "1"]
    assert run(["train", str(bundle), "--json", *training]) == 1
    error = json.loads(capfd.readouterr().out)["error"]
    assert error["found"] == "programs for the backend CoreMLBackend, which this runtime lacks"
    assert not (tmp_path / "state").exists()


def test_a_method_that_is_not_there(bundle: Path) -> None:
    with pytest.raises(BundleError, match=r"no method 'heads'.*Did you mean"):
        DelegatedFile(bundle / "model.pte").method("heads")


def test_a_damaged_file(bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.pte"
    path.write_bytes((bundle / "model.pte").read_bytes()[:1000])
    with pytest.raises(BundleError, match=r"model.pte: found .*compile it again"):
        DelegatedFile(path)
