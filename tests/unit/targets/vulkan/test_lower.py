"""Lowering to the Vulkan engine: where tensors and weights lie, what is refused, and the shaders themselves."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.rows import program
from tests.support.splits import tiny_graph
from tests.support.tiers import slow_after, slow_architectures
from tests.support.tiny_models import ARCHITECTURES, fixed, tiny_config
from zoexport import models
from zoexport.compiler.graphs import training_graph
from zoexport.compiler.plan import plan
from zoexport.core.errors import ConfigError, LoweringError
from zoexport.models.shapes import published
from zoexport.targets.executorch.lower_stages import fused_program
from zoexport.targets.vulkan import places
from zoexport.targets.vulkan.calls import Calls, calls_of
from zoexport.targets.vulkan.lower import FILE, FORMAT, footprints, lower_vulkan
from zoexport.targets.vulkan.places import place_tensors, place_weights

SHADERS = Path(__file__).parents[4] / "runtime_ops" / "engines" / "vulkan" / "shaders"


def lowered(folder: Path, name: str, **settings: str) -> dict[str, Any]:
    """The file of a tiny model's programs."""
    graph, _ = tiny_graph(name, target="android-gpu", **settings)
    made = lower_vulkan(graph, folder, lambda *_: None)
    assert [entry["name"] for entry in made.programs] == list(graph.programs)
    assert {entry["file"] for entry in made.programs} == {FILE} and made.engine == "vulkan"
    content: dict[str, Any] = json.loads((folder / FILE).read_text())
    return content


@pytest.mark.parametrize("name", slow_architectures(ARCHITECTURES))
def test_every_architecture_is_lowered(name: str, tmp_path: Path) -> None:
    content = lowered(tmp_path, name, weights="int4")
    assert content["format"] == FORMAT and len(content["windows"]) == 2
    for made in content["programs"].values():
        assert made["calls"] and made["words"] > 0
    assert {call["op"] for made in content["programs"].values() for call in made["calls"]} >= {
        "product", "rows", "labels"
    }  # fmt: skip


def test_an_operator_without_a_shader_is_one_message() -> None:
    made = fused_program(program(lambda x: torch.sin(x * 2.0), fixed("x", (3, 8))))
    with pytest.raises(LoweringError, match=r"found the operator aten\.sin\.default") as raised:
        calls_of(made)
    assert raised.value.where.startswith("program test, aten.sin")


def in_use(calls: Calls) -> list[set[Any]]:
    """For each call, the tensors that something before it made and that it or something after it reads."""
    made = {gather.to for gather in calls.gathers}
    written = {one for call in calls.calls for one in call.written()}
    read = {one for call in calls.calls for one in call.read()} | {*calls.outputs}
    made |= read - written  # inputs
    found = []
    for number, call in enumerate(calls.calls):
        later = {one for other in calls.calls[number:] for one in other.read()} | {*calls.outputs}
        found.append((made & later) | {*call.written()})
        made |= {*call.written()}
    return found


@pytest.mark.parametrize(("name", "weights"), [("llama_tied", "int4"), ("cohere", "fp32")])
def test_no_two_tensors_that_are_needed_at_once_share_a_place(name: str, weights: str) -> None:
    graph, _ = tiny_graph(name, target="android-gpu", weights=weights)
    planned = footprints(graph, lambda *_: None)
    for made in graph.programs.values():
        calls = calls_of(fused_program(made))
        at, words = place_tensors(calls)
        for together in in_use(calls):
            ends = sorted((at[one], at[one] + calls.words[one]) for one in together)
            assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))
            assert ends[-1][1] <= words
        # Less than half of what all of them would take beside one another.
        if made.called == "layer.0.backward":
            assert 2 * words < sum(calls.words[one] for one in at)
            assert planned[made.name].planned == 4 * words
            # 4 bits, or a number, of each weight, twice where its layer's outputs are computed again.
            assert planned[made.name].moved > 4 * sum(calls.words[one] for one in at)


@pytest.mark.parametrize("weights", ["int4", "fp32"])
def test_memory_does_not_grow_with_the_number_of_layers(weights: str, tmp_path: Path) -> None:
    """Of what is planned, and of the file that the engine makes its buffers by."""
    found = []
    for layers in (2, 4, 8):
        folder = tmp_path / str(layers)
        tiny_config("llama", num_hidden_layers=layers).save_pretrained(folder)
        planned = plan("mebp", "android-gpu", {"max_length": "48", "weights": weights})
        source = models.resolve(str(folder), weights=False)
        graph = training_graph(planned, models.blank(source).model, lambda *_: None)
        footprints = planned.target.footprints(graph, planned.config, lambda *_: None)
        assert sum(stage.forward.startswith("layer.") for stage in graph.stages) == layers
        pool = max(one.planned for one in footprints.values())
        windows = [
            max(sizes) for sizes in zip(*(one.windows for one in footprints.values()), strict=True)
        ]
        lower_vulkan(graph, folder, lambda *_: None)
        content = json.loads((folder / FILE).read_text())
        assert pool == 4 * max(made["words"] for made in content["programs"].values())
        assert windows == content["windows"]
        found.append((pool, windows))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("name", "weights", "row_bytes", "rows"),
    slow_after(
        1,
        [
            ("gemma3-1b", "int4", 648, [196608, 65536]),
            ("gemma3-4b", "int8", 2564, [49152, 49152, 49152, 49152, 49152, 16448]),
            ("qwen2.5-1.5b", "int8", 1540, [81920, 70016]),
            ("qwen2.5-3b", "fp32", 8192, [16384] * 9 + [4480]),
        ],
    ),
)
def test_published_vocabularies(
    name: str, weights: str, row_bytes: int, rows: list[int], tmp_path: Path
) -> None:
    """One layer of the shape: the head's matrix, and its logits with their gradient for all labels of a call."""
    config = json.loads((published(name) / "config.json").read_text())
    config.get("text_config", config)["num_hidden_layers"] = 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    planned = plan("mebp", "android-gpu", {"max_length": "64", "weights": weights})
    source = models.resolve(str(tmp_path), weights=False)
    graph = training_graph(planned, models.blank(source).model, lambda *_: None)
    found = planned.target.footprints(graph, planned.config, lambda *_: None)
    head = found["head.backward"]
    assert [size for size in head.windows if size] == [row_bytes * count for count in rows]
    logits = 4 * graph.label_rows * sum(rows)
    assert graph.label_rows >= 8 and 2 * logits <= head.planned <= places.MOST_BYTES


def test_weights_of_a_layer_lie_at_the_same_places_forward_and_backward() -> None:
    graph, _ = tiny_graph("llama_tied", target="android-gpu", weights="int4")
    weights, windows = place_weights(
        [calls_of(fused_program(made)) for made in graph.programs.values()]
    )
    layers = [
        weights[f"layer.0{kind}@{length}"] for kind in ("", ".backward") for length in (32, 48)
    ]
    assert layers[0] and all(layer == layers[0] for layer in layers[1:])
    assert {part.window for (part,) in layers[0].values()} == {0}
    assert {part.window for (part,) in weights["head"].values()} == {1}
    assert weights["head"] == weights["head.backward"]
    # Rows of the embedding's table are gathered.
    assert weights["embedding@32"] == {}
    # 7 matrices of 64 x 64 to 64 x 128 in 4 bits with 2 bytes a group of 32, and the head's of 320 x 64.
    assert windows == [20736, 11520]


def test_a_table_is_gathered_from_and_never_whole_on_the_device(tmp_path: Path) -> None:
    content = lowered(tmp_path, "gpt2", weights="fp32")
    embedding = content["programs"]["embedding_32"]
    tables = {gather["table"] for gather in embedding["gathers"]}
    assert len(tables) == 2 and all(embedding["inputs"][table] == {} for table in tables)
    # Rows of tokens, and of positions, whose indices are a constant from its first element on.
    assert sorted(gather["count"] for gather in embedding["gathers"]) == [32, 64]


def test_what_no_device_could_bind_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = tiny_graph("llama_tied", target="android-gpu", weights="fp32")
    every = [calls_of(fused_program(made)) for made in graph.programs.values()]
    monkeypatch.setattr(places, "MOST_BYTES", 100_000)
    with pytest.raises(LoweringError, match=r"tensors of \d+ MB at once; expected at most 0 MB"):
        place_tensors(next(calls for calls in every if calls.program.called == "layer.0.backward"))
    # A row or two in each.
    monkeypatch.setattr(places, "WINDOW_BYTES", 528)
    with pytest.raises(LoweringError, match=r"in \d\d\d windows; expected at most 64 windows"):
        place_weights(every)
    monkeypatch.setattr(places, "WINDOW_BYTES", 255)
    with pytest.raises(LoweringError, match=r"a row of 0 MB at once"):
        place_weights(every)


@pytest.mark.parametrize(("weights", "size"), [("int4", 4608), ("int8", 8448), ("fp32", 32768)])
def test_weights_that_are_more_than_a_window_have_several(
    weights: str, size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Windows that the head's matrix does not fit in, and two of a layer's do."""
    monkeypatch.setattr(places, "WINDOW_BYTES", size)
    content = lowered(tmp_path, "llama_tied", weights=weights)
    graph, _ = tiny_graph("llama_tied", target="android-gpu", weights=weights)
    planned = footprints(graph, lambda *_: None)
    assert all(0 < window <= size for window in content["windows"])
    sizes = [max(sizes) for sizes in zip(*(one.windows for one in planned.values()), strict=True)]
    assert sizes == content["windows"]
    for name in ("head", "head_backward"):
        made = content["programs"][name]
        for parts in (one["parts"] for one in made["inputs"] if "parts" in one):
            assert [part["window"] - parts[0]["window"] for part in parts] == [0, 1, 2]
            # One after another, and none missing.
            ends = [part["from"] + part["bytes"] for part in parts]
            assert [part["from"] for part in parts] == [0, *ends[:-1]]
        pieces = [call for call in made["calls"] if isinstance(call.get("b"), dict)]
        assert sum(call["columns" if name == "head" else "depth"] for call in pieces[-3:]) == 320


def test_calls_that_are_left_outside_of_row_programs() -> None:
    """Columns two apart, read and written, by row programs of one column each."""

    def halves(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(3, 4, 8).slice_scatter(x[..., 1::2] * 2.0, 2, 0, None, 2)

    calls = calls_of(fused_program(program(halves, fixed("x", (3, 4, 8)))))
    assert {call.op for call in calls.calls} == {"rows"}
    strided = calls.calls[0].sizes
    assert strided["dims"] == [3, 4, 4] and strided["reads"] == [[1, 1, 32, 8, 2]]
    put = calls.calls[-1].sizes
    assert put["dims"] == [48] and put["phases"][-1]["width"] == 2

    def turned(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(3, 4, 16).slice_scatter(x.transpose(1, 2), 2, -8, -3)

    # As the gradient of keys whose head an index picks, beside ALiBi: columns that follow each other.
    put = calls_of(fused_program(program(turned, fixed("x", (3, 5, 4))))).calls[-1].sizes
    assert put["dims"] == [12] and put["reads"] == [[5, 0, 5]]
    assert put["phases"][-1]["width"] == 16


def test_gradients_of_picked_heads_are_put_together_by_one_row_program() -> None:
    """Queries, and the last two of all heads, which are keys and values."""
    parts = [fixed(name, (3, 4, heads, 8)) for name, heads in (("q", 4), ("k", 1), ("v", 1))]

    def together(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        below = torch.zeros(3, 4, 6, 8)
        whole = below.slice_scatter(q, 2, 0, -2) + below.slice_scatter(k, 2, -2, -1)
        return whole + below.slice_scatter(v, 2, -1)

    (call,) = calls_of(fused_program(program(together, *parts))).calls
    assert call.op == "rows" and call.sizes["dims"] == [3, 4]
    assert sorted(read[0] for read in call.sizes["reads"]) == [8, 8, 32]


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("prge", {"granularity": "model"}, "target android-gpu has no programs of the whole model"),
        ("mebp", {"activations": "int8"}, "takes activations=fp32"),
        ("senszoq", {}, "has no sparse product"),
        ("quzo", {"train": "lora"}, "has no product that perturbs integers"),
    ],
)
def test_what_it_cannot_run_is_said_before_compiling(
    method: str, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(method, "android-gpu", settings)


def test_the_default_method_is_mebp() -> None:
    assert plan(None, "android-gpu", {}).method.name == "mebp"


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("shader", sorted(SHADERS.glob("*.comp")), ids=lambda path: path.stem)
def test_shaders_are_valid_for_vulkan_1_1(shader: Path, half: bool, tmp_path: Path) -> None:
    """As the build compiles them, for tensors of fp16 too."""
    compiled = tmp_path / "shader.spv"
    target = ["--target-env", "vulkan1.1"]
    line = ["glslangValidator", "-V", "--keep-uncalled", *(["-DHALF"] if half else []), *target]
    subprocess.run([*line, "-o", compiled, shader], check=True)
    found = subprocess.run(["spirv-val", *target, compiled], capture_output=True, text=True)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")
    # No feature that a device may lack, but what the engine asks for before it takes such programs.
    text = subprocess.run(
        ["spirv-dis", compiled], capture_output=True, text=True, check=True
    ).stdout
    capabilities = {line.split()[-1] for line in text.splitlines() if "OpCapability" in line}
    assert capabilities == {"Shader"} | ({"StorageBuffer16BitAccess"} if half else set())
