"""Programs lowered for Vulkan: what the delegates get, and what is said of a bundle that nothing here can run.

A delegate is run here as the operators that it was given, in torch: that compares what we made of the graph, not what
a GPU computes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import Node

from tests.support.splits import arguments, difference, state, tiny_graph
from tests.support.tiers import slow_after
from tests.support.tiny_models import from_config, save_tiny, tiny_config
from zoexport.build import plan, training_graph
from zoexport.cli.main import run
from zoexport.core import manifest
from zoexport.core.errors import ConfigError, LoweringError
from zoexport.core.types import TrainingGraph
from zoexport.ir.samples import sample_inputs
from zoexport.targets.executorch.exported import is_product
from zoexport.targets.vulkan_delegate.lower import NOT_RUN, Delegated, delegated, sized_program

ARCHITECTURES = ("llama", "qwen2", "gemma3", "olmo2")
ONE_LAYER = {"gemma3": {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}}
RUNTIME_OPERATORS = {
    *("_softmax.default", "_to_copy.default", "add.Tensor", "bmm.default", "cat.default", "clone.default"),
    *("constant_pad_nd.default", "div.Tensor", "embedding.default", "expand_copy.default", "gelu.default"),
    *("index_select.default", "linear.default", "mean.dim", "mul.Tensor", "neg.default", "permute_copy.default"),
    *("pow.Tensor_Scalar", "repeat.default", "rsqrt.default", "sigmoid.default", "slice_copy.Tensor"),
    *("squeeze_copy.dims", "sub.Tensor", "sum.dim_IntList", "tanh.default", "unsqueeze_copy.default"),
    *("view_copy.default", "embedding_q4gsw.default", "linear_q4gsw.default", "prepack.default"),
}  # fmt: skip
"""Operators of these programs that ExecuTorch's Vulkan runtime registers (VK_REGISTER_OP in its sources)."""


ENGINE = {"engine": "executorch"}
EXECUTORCH = ("--set", "engine=executorch")


@functools.cache
def whole(name: str, *programs: str, **settings: str) -> tuple[TrainingGraph, Delegated]:
    """Some programs of P-RGE over a tiny model of one layer, delegated."""
    values = {"seq_len": "24", "batch": "2", "lora.rank": "4", "queries": "2", **ENGINE, **settings}
    planned = plan("prge", "android-gpu", values)
    model = from_config(tiny_config(name, **ONE_LAYER.get(name, {"num_hidden_layers": 1})))
    graph = training_graph(planned, model, lambda *_: None)
    graph.programs = {program: graph.programs[program] for program in programs}
    return graph, delegated(graph, planned.config, lambda *_: None)


@functools.cache
def layers(name: str) -> tuple[TrainingGraph, Delegated]:
    """The backward programs of MeBP over a tiny model, which contain the forward ones, delegated."""
    graph, _ = tiny_graph(
        name, target="android-gpu", weights="int4", lora__targets="attention", **ENGINE
    )
    names = ["layer.0.backward@32", *(["head.backward"] if name == "llama" else [])]
    programs = {key: graph.programs[key] for key in names}
    graph = dataclasses.replace(graph, programs=programs)
    config = plan("mebp", "android-gpu", ENGINE).config
    return graph, delegated(graph, config, lambda *_: None)


def delegates(edge: Delegated, name: str) -> list[Any]:
    """The delegates of a program, as ExecuTorch has lowered them."""
    graph_module = edge.program(name).graph_module
    return [module for key, module in graph_module.named_children() if "lowered_module" in key]


def operators(module: Any) -> list[str]:
    """What the Vulkan runtime will be asked for, by a delegate's serialized graph."""
    names = re.findall(rb"(?:aten|et_vk|torchao)\.(\w+\.\w+)", module.processed_bytes)
    return [name.decode() for name in names]


def check(edge: Delegated, name: str) -> None:
    """Every product is in a delegate, and of the form that the runtime computes."""
    outside = [str(node.target) for node in edge.program(name).graph_module.graph.nodes]
    assert not [call for call in outside if is_product(call.replace("aten.", "aten::"))]
    for module in delegates(edge, name):
        assert {*operators(module)} <= RUNTIME_OPERATORS
        inner = module.original_module
        signature = inner.graph_signature
        constants = {*signature.inputs_to_buffers, *signature.inputs_to_parameters}
        for node in inner.graph_module.graph.nodes:
            if "aten.mm." in str(node.target):
                assert [arg.meta["val"].dim() for arg in node.args] == [2, 2]
                assert _source(node.args[1]).name in constants
            if "aten.bmm." in str(node.target):
                assert [arg.meta["val"].dim() for arg in node.args] == [3, 3]
                assert node.args[0].name not in constants


def _source(node: Node) -> Node:
    """The input below layouts and what makes numbers of codes."""
    while node.op != "placeholder":
        (node, *_) = node.all_input_nodes
    return node


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_zeroth_order_training_is_one_delegate(name: str) -> None:
    graph, edge = whole(name, "train")
    check(edge, "train")
    (module,) = delegates(edge, "train")
    products = operators(module).count("linear_q4gsw.default")
    weights = [name for name in graph.weights if name.endswith(".codes.int8")]
    # Those of the layer and of the output head, whether or not that shares its weight with the table of tokens.
    assert products == len(weights) == 8
    assert operators(module).count("embedding_q4gsw.default") == 1
    program = sized_program(graph, graph.programs["train"])
    values = sample_inputs(dataclasses.replace(graph, initial=state(graph)), program)
    for value in program.arguments():
        if value.role in ("learning_rate", "epsilon", "projected_gradients"):
            values[value.name] = torch.full(value.sizes(), 0.01)
        if value.role == "step":
            values[value.name] = torch.tensor([3])
    expected = program.module(
        *(values.get(v.name, graph.weights.get(v.name)) for v in program.inputs)
    )
    found = edge.program("train").module()(*(values[value.name] for value in program.arguments()))
    for ours, theirs in zip(found, expected, strict=True):
        assert difference(ours, theirs) < 5e-6


@pytest.mark.parametrize("name", slow_after(1, ARCHITECTURES))
def test_backpropagation_is_one_delegate_a_layer(name: str) -> None:
    graph, edge = layers(name)
    for key, program in graph.programs.items():
        check(edge, key)
        # The output head's gradient lies between two.
        assert len(delegates(edge, key)) == (2 if key == "head.backward" else 1)
        given = arguments(graph, program)
        found = edge.program(key).module()(*given)
        for ours, theirs in zip(found, program.module(*given), strict=True):
            assert difference(ours, theirs) < 5e-6


def test_fp32_weights_and_fp16_arithmetic() -> None:
    graph, edge = whole("llama", "evaluate", weights="fp32", compute="fp16")
    check(edge, "evaluate")
    (module,) = delegates(edge, "evaluate")
    assert operators(module).count("linear.default") == 8
    assert [spec.value for spec in module.compile_specs if spec.key == "force_fp16"] == [b"\x01"]
    # Rows of one length, and as many labels as there may be: 2 rows of 24 tokens.
    (entry,) = edge.entries
    shapes = {value["role"]: value["shape"] for value in entry["inputs"]}
    assert shapes["tokens"] == [2, 24]
    assert shapes["label_positions"] == [48] == [graph.max_labels]


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("mebp", {"activations": "int8"}, "takes activations=fp32"),
        ("prge", {"activations": "int8"}, "choose activations=fp32"),
        ("mezo", {"weights": "int8"}, "_weight_int8pack_mm"),
    ],
)
def test_what_cannot_be_delegated_is_said_before_compiling(
    method: str, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(method, "android-gpu", {**ENGINE, **settings})


def test_defaults() -> None:
    config = plan("prge", "android-gpu", ENGINE).config
    assert (config.weights, config.activations, config.compute) == ("int4", "fp32", "fp32")
    assert plan("prge", "android-gpu", {**ENGINE, "weights": "int8", "split": "layers"})


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A tiny model's folder, its bundle with the target's defaults, and what compiling it said."""

    model: Path
    bundle: Path
    text: str


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """The one bundle of these tests; its rows are short."""
    folder = tmp_path_factory.mktemp("gpu")
    model, bundle = save_tiny("llama", folder / "tiny"), folder / "bundle"
    line = ["compile", str(model), "--target", "android-gpu", *EXECUTORCH, "--set", "seq_len=32"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert run([*line, "-o", str(bundle)]) == 0
    return Compiled(model, bundle, out.getvalue())


def test_a_bundle_says_what_was_delegated_and_that_it_was_not_run(
    compiled: Compiled, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "Compiled for android-gpu with mebp." in compiled.text
    assert f"Note: {NOT_RUN}." in compiled.text.splitlines()
    found = manifest.read(compiled.bundle, verify_files=True)
    assert found["backends"] == ["VulkanBackend"]
    assert found["notes"][0] == NOT_RUN
    assert {name: len(parts) for name, parts in found["delegate_list"].items()} == {
        "embedding@32": 0, "layer.0@32": 1, "head": 1, "layer.0.backward@32": 1, "head.backward": 2
    }  # fmt: skip
    assert found["fallback_ops"]["layer.0.backward@32"] == {"zoexport::embedding_int4": 7}
    assert {*found["fallback_reasons"]["head"]} == {*found["fallback_ops"]["head"]}
    assert "constants alone" in found["fallback_reasons"]["head"]["zoexport::embedding_int4"]
    assert run(["inspect", str(compiled.bundle)]) == 0
    assert f"Note: {NOT_RUN}." in capfd.readouterr().out.splitlines()
    assert run(["inspect", str(compiled.bundle), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["notes"][0] == NOT_RUN


@pytest.mark.parametrize("verb", ["parity", "train"])
def test_running_it_here_is_one_clear_error(
    compiled: Compiled, verb: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "The film is a warm story."}\n')
    training = ["--data", str(data), "--state", str(tmp_path / "state"), "--steps", "1"]
    assert run([verb, str(compiled.bundle), "--json", *(training if verb == "train" else [])]) == 1
    out, err = capfd.readouterr()
    assert [line for line in err.splitlines() if line.startswith("error:")] == err.splitlines()[-1:]
    error = json.loads(out)["error"]
    assert error["found"] == "programs for the backend VulkanBackend, which this runtime lacks"
    assert error["fix"] == "Run the bundle where target android-gpu runs."
    assert not (tmp_path / "state").exists()


def test_products_on_the_cpu_are_refused(
    compiled: Compiled,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from executorch.backends.vulkan import op_registry
    from executorch.exir.dialects._ops import ops

    monkeypatch.delitem(op_registry.vulkan_supported_ops, ops.edge.aten.bmm.default)
    line = [
        "compile",
        str(compiled.model),
        "--target",
        "android-gpu",
        *EXECUTORCH,
        "--method",
        "prge",
    ]
    line += ["--set", "seq_len=8", "--set", "split=layers", "-o", str(tmp_path / "bundle")]
    assert run(line) == 1
    message = capfd.readouterr().err.splitlines()[-1]
    assert "target android-gpu: found matrix products that its accelerator does not take" in message
    assert "aten::bmm x1 in head (ExecuTorch's Vulkan partitioner: no operator" in message
    assert not (tmp_path / "bundle").exists()


def test_a_refusal_of_ExecuTorch_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from executorch import exir

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("no such\nthing")

    monkeypatch.setattr(exir, "to_edge", refuse)
    graph, _ = tiny_graph(
        "llama", target="android-gpu", weights="int4", lora__targets="attention", **ENGINE
    )
    one = dataclasses.replace(graph, programs={"head": graph.programs["head"]})
    with pytest.raises(LoweringError, match="ValueError: no such") as error:
        delegated(one, plan("mebp", "android-gpu", ENGINE).config, lambda *_: None)
    assert error.value.where == "lowering to Vulkan"
