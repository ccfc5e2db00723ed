"""llama.cpp's files out and in: rows against formulas of their own, files against the package gguf, hostile ones."""

from __future__ import annotations

import dataclasses
import math
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.adapter_slots import ALPHA, RANK, slots_of
from tests.support.llama_cpp_models import _ordered, interleaved, ungrouped
from tests.support.tiny_models import fixed, tiny
from zoexport.adapters import AdapterSettings, adapter_format
from zoexport.adapters.gguf_file import LONGEST_HEADER, BadGgufError, open_gguf
from zoexport.adapters.llama_cpp import GgufFormat
from zoexport.adapters.llama_cpp_names import (
    ARCHITECTURES,
    Architecture,
    Heads,
    row_order,
    rows_of,
    tensor_names,
)
from zoexport.core.errors import ConfigError, StateError
from zoexport.core.sizes import attention_heads
from zoexport.models import adapter_targets
from zoexport.models.conv1d import linear_from_conv1d

GGUF = GgufFormat()
LLAMA = ARCHITECTURES["LlamaForCausalLM"]
NEOX = ARCHITECTURES["GPTNeoXForCausalLM"]
Case = tuple[dict[str, np.ndarray], AdapterSettings]


def _case(model: Any, targets: str = "all-linear", rank: int = RANK) -> Case:
    """Slots for a model's layers, and settings; GPT-2's layers must be linear ones."""
    found = slots_of(model, adapter_targets(model, targets), rank)
    slots = {name: value.numpy() for name, value in found.items()}
    heads = attention_heads(model.config)
    settings = AdapterSettings(
        rank,
        ALPHA,
        "org/base",
        (),
        architecture=type(model).__name__,
        heads=None if heads is None else (heads["queries"], heads["keys"]),
    )
    return slots, settings


def _shapes(slots: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: values.shape for name, values in slots.items()}


@pytest.mark.parametrize(
    "name",
    ["llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3", "olmo2", "gpt2", "gpt_neox", "bloom"],
)
def test_the_product_is_the_change_of_llama_cpps_weight(name: str, tmp_path: Path) -> None:
    """What (alpha / rank) b a adds to llama.cpp's weight is what A B adds to transformers', in llama.cpp's order."""
    model = tiny(name)
    config = model.config
    linear_from_conv1d(model)
    slots, settings_ = _case(model)
    GGUF.write(slots, settings_, tmp_path / "adapter.gguf")
    reader = gguf.GGUFReader(tmp_path / "adapter.gguf")
    assert {key: reader.fields[key].contents() for key in reader.fields if key[0] != "G"} == {
        "general.architecture": gguf.MODEL_ARCH_NAMES[
            gguf.MODEL_ARCH[ARCHITECTURES[type(model).__name__].name]
        ],
        "general.type": "adapter",
        "general.file_type": 0,
        "general.quantization_version": 2,
        "general.base_model.count": 1,
        "general.base_model.0.name": "org/base",
        "adapter.type": "lora",
        "adapter.lora.alpha": ALPHA,
    }
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    layers = config.num_hidden_layers
    names = gguf.get_tensor_name_map(
        gguf.MODEL_ARCH[ARCHITECTURES[type(model).__name__].name], layers
    )
    modules = [slot.removeprefix("lora_A.") for slot in slots if slot.startswith("lora_A.")]
    assert len(tensors) == 2 * len(modules)
    for module in modules:
        change = (slots[f"lora_A.{module}"] @ slots[f"lora_B.{module}"]).T * (ALPHA / RANK)
        expected = _ordered(config.model_type, config, f"{module}.weight", change)
        plain = names.get_name(module) or names.get_name(module.removeprefix("transformer."))
        weight = f"{plain}.weight"
        a, b = tensors[f"{weight}.lora_a"], tensors[f"{weight}.lora_b"]
        assert a.shape == (RANK, change.shape[1]) and b.shape == (change.shape[0], RANK)
        np.testing.assert_allclose(b @ a * (ALPHA / RANK), expected, rtol=1e-4, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 17), st.sampled_from("qk"))
def test_pairs_of_rows(queries: int, keys: int, half: int, which: str) -> None:
    """Row i of a head's halves become rows 2 i and 2 i + 1, for any number and width of heads."""
    heads = queries if which == "q" else keys
    rows = 2 * half * heads
    order = row_order(LLAMA, f"layers.0.{which}_proj", (rows, 5), Heads(queries, keys))
    assert order == {"pairs": heads}
    np.testing.assert_array_equal(rows_of(order, rows), interleaved(np.arange(rows), heads))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 13))
def test_fused_rows(groups: int, each: int, width: int) -> None:
    heads = groups * each
    shape = ((heads + 2 * groups) * width, heads * width)
    order = row_order(NEOX, "query_key_value", shape, Heads(heads, heads))
    assert order == {"groups": groups, "width": width}
    found = rows_of(order, shape[0])
    np.testing.assert_array_equal(found, ungrouped(np.arange(shape[0]), heads, groups))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 7),
    st.integers(1, 33),
    st.integers(1, 40),
    st.floats(2**-10, 2**10, width=32),
    st.integers(0, 2**32 - 1),
)
def test_any_shape_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    keys: int,
    each: int,
    half: int,
    rank: int,
    inputs: int,
    alpha: float,
    seed: int,
) -> None:
    """Every bit of every finite number, for layers of any width."""
    heads = Heads(keys * each, keys)
    path = "model.layers.12.self_attn"
    outputs = {"q_proj": 2 * half * heads.queries, "k_proj": 2 * half * keys, "v_proj": 3}
    generator = np.random.default_rng(seed)
    slots: dict[str, np.ndarray] = {}
    for name, rows in outputs.items():
        for half_name, shape in (("A", (inputs, rank)), ("B", (rank, rows))):
            bits = generator.integers(0, 2**32, shape, np.uint32)
            values = bits.view(np.float32)
            slots[f"lora_{half_name}.{path}.{name}"] = np.where(np.isfinite(values), values, 0)
    made = AdapterSettings(
        rank,
        alpha,
        "",
        (),
        architecture="LlamaForCausalLM",
        heads=(heads.queries, heads.keys),
    )
    file = tmp_path_factory.mktemp("any") / "adapter.gguf"
    GGUF.write(slots, made, file)
    read = GGUF.read(file, _shapes(slots), made)
    assert list(read) == list(slots)
    for name, values in read.items():
        assert values.dtype == np.float32 and values.flags.c_contiguous
        assert values.tobytes() == np.ascontiguousarray(slots[name]).tobytes()


def test_a_model_that_sees_images_has_its_language_models_names() -> None:
    kind = ARCHITECTURES["Gemma3ForConditionalGeneration"]
    for path in ("model.language_model.layers.5.mlp.up_proj", "model.layers.5.mlp.up_proj"):
        assert tensor_names(kind, [path]) == {path: "blk.5.ffn_up.weight"}


@pytest.fixture
def adapter(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray], AdapterSettings]:
    slots, made = _case(tiny("llama"), "q_proj,v_proj")
    GGUF.write(slots, made, tmp_path / "adapter.gguf")
    return tmp_path / "adapter.gguf", slots, made


def test_the_same_slots_give_the_same_bytes(adapter: Any, tmp_path: Path) -> None:
    file, slots, made = adapter
    again = {name: torch.from_numpy(slots[name]) for name in reversed(list(slots))}
    GGUF.write(again, made, tmp_path / "again.gguf")
    assert file.read_bytes() == (tmp_path / "again.gguf").read_bytes()
    with pytest.raises(ConfigError, match="already there"):
        GGUF.write(slots, made, file)
    GGUF.write(slots, made, file, replace=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter.gguf", "again.gguf"]


@pytest.mark.parametrize(
    ("outtype", "rank", "kinds", "bound"),
    [
        ("f16", 4, {"F16"}, 2**-11),
        ("q8_0", 4, {"Q8_0", "F16"}, 1 / 127),
        ("q8_0", 32, {"Q8_0"}, 1 / 127),
    ],
)
def test_fewer_bits(tmp_path: Path, outtype: str, rank: int, kinds: set[str], bound: float) -> None:
    """Each number within half a unit of its block's largest; rows that have no whole blocks are f16."""
    slots, made = _case(tiny("llama"), rank=rank)
    file = tmp_path / "adapter.gguf"
    adapter_format("gguf", outtype).write(slots, made, file)
    tensors = gguf.GGUFReader(file).tensors
    assert {tensor.tensor_type.name for tensor in tensors} == kinds
    for name, values in GGUF.read(file, _shapes(slots), made).items():
        error = np.abs(values - slots[name]).max()
        assert 0 < error <= bound * np.abs(slots[name]).max()


@pytest.mark.parametrize("outtype", ["f16", "q8_0"])
def test_numbers_beyond_float16(adapter: Any, tmp_path: Path, outtype: str) -> None:
    _, slots, made = adapter
    slots["lora_B.model.layers.0.self_attn.v_proj"][1, 2] = 7e9
    with pytest.raises(ConfigError, match=r"7e\+09.*65504.*outtype=.f32"):
        adapter_format("gguf", outtype).write(slots, made, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_bfloat16_is_read(adapter: Any) -> None:
    file, slots, made = adapter
    _rewrite(file, kind=gguf.GGMLQuantizationType.BF16)
    for name, values in GGUF.read(file, _shapes(slots), made).items():
        np.testing.assert_allclose(values, slots[name], rtol=2**-8)


def test_ranks_and_scales_by_module(tmp_path: Path) -> None:
    """One alpha for the file, powers of two in B: the product is the change of the weight, and all comes back."""
    model = tiny("mistral")
    _, plain = _case(model)
    made = dataclasses.replace(
        plain, rslora=True, rank_pattern={"v_proj": 1, "gate_proj": 16}, alpha_pattern={"q_proj": 3}
    )
    scaling = made.scaling
    slots = {}
    for module in adapter_targets(model, "q_proj,v_proj,gate_proj"):
        layer, rank = model.get_submodule(module), scaling.rank_of(module)
        a, b = f"lora_A.{module}", f"lora_B.{module}"
        slots[a] = fixed(a, (layer.in_features, rank)).numpy()
        slots[b] = fixed(b, (rank, layer.out_features)).numpy()
    GGUF.write(slots, made, tmp_path / "adapter.gguf")
    reader = gguf.GGUFReader(tmp_path / "adapter.gguf")
    alpha = float(reader.fields["adapter.lora.alpha"].contents())
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    for module, name in (("self_attn.v_proj", "attn_v"), ("mlp.gate_proj", "ffn_gate")):
        path = f"model.layers.1.{module}"
        b, a = (tensors[f"blk.1.{name}.weight.lora_{half}"] for half in "ba")
        change = (slots[f"lora_A.{path}"] @ slots[f"lora_B.{path}"]).T * scaling.scale_of(path)
        np.testing.assert_allclose(b @ a * (alpha / a.shape[0]), change, rtol=1e-5, atol=1e-6)
    again = GGUF.read(tmp_path / "adapter.gguf", _shapes(slots), made)
    assert all(np.array_equal(again[name], values) for name, values in slots.items())
    other = dataclasses.replace(made, rslora=False)
    with pytest.raises(StateError, match=r"alpha: found 6\.0; expected 3.*lora_alpha=12"):
        GGUF.read(tmp_path / "adapter.gguf", _shapes(slots), other)
    other = dataclasses.replace(made, rank_pattern={"v_proj": 1, "gate_proj": 3})
    with pytest.raises(
        StateError, match=r"the rank of blk\.0\.ffn_gate\.weight\.lora_a: found 16; exp"
    ):
        GGUF.read(
            tmp_path / "adapter.gguf", _shapes(slots), dataclasses.replace(other, rslora=False)
        )
    with pytest.raises(ConfigError, match="or powers of two of it"):
        GGUF.write(slots, other, tmp_path / "other.gguf")
    assert not (tmp_path / "other.gguf").exists()


@pytest.mark.parametrize(
    ("changes", "modules", "message"),
    [
        ({"architecture": "OPTForCausalLM"}, ["q_proj"], "a bundle of OPTForCausalLM.*merged"),
        ({"architecture": ""}, ["q_proj"], "an unknown architecture"),
        ({"heads": None}, ["q_proj"], r"how many heads.*convert_lora_to_gguf\.py"),
        ({"heads": (3, 3)}, ["q_proj"], "64 outputs of 64 inputs.*3 heads of queries"),
        ({}, ["odd_proj"], "odd_proj, for which llama.cpp's llama has no such layer"),
    ],
)
def test_what_cannot_be_written(
    tmp_path: Path, changes: dict[str, Any], modules: list[str], message: str
) -> None:
    slots = {}
    for module in modules:
        slots[f"lora_A.model.layers.0.self_attn.{module}"] = np.ones((64, RANK), np.float32)
        slots[f"lora_B.model.layers.0.self_attn.{module}"] = np.ones((RANK, 64), np.float32)
    made = AdapterSettings(RANK, ALPHA, "", (), architecture="LlamaForCausalLM", heads=(4, 2))
    with pytest.raises(ConfigError, match=message):
        GGUF.write(slots, dataclasses.replace(made, **changes), tmp_path / "out.gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", [(64, 60), (90, 64), (64, 64), (1, 64)])
def test_rows_that_are_not_of_heads(shape: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="does not fit its slots"):
        row_order(NEOX, "query_key_value", shape, Heads(4, 4))


def test_two_layers_of_one_name() -> None:
    modules = ["model.layers.0.mlp.up_proj", "model.language_model.layers.0.mlp.up_proj"]
    with pytest.raises(ConfigError, match=r"another layer at blk\.0\.ffn_up\.weight"):
        tensor_names(Architecture("LLAMA"), modules)


def _rewrite(
    file: Path,
    *,
    architecture: str = "llama",
    fields: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray | None] | None = None,
    kind: Any = None,
) -> None:
    """Write an adapter's file again with other fields and tensors; None leaves one out."""
    reader = gguf.GGUFReader(file)
    kept = {tensor.name: np.array(tensor.data) for tensor in reader.tensors} | (tensors or {})
    values = {
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": ALPHA,
        **(fields or {}),
    }
    del reader
    writer = gguf.GGUFWriter(str(file), architecture)
    for name, value in values.items():
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif value is not None:
            writer.add_float32(name, value)
    for name, tensor in kept.items():
        if tensor is not None:
            encoded = tensor if kind is None else gguf.quantize(tensor, kind)
            writer.add_tensor(name, encoded, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_A, _B = (f"blk.0.attn_q.weight.lora_{half}" for half in "ab")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "qwen2"}, "general.architecture: found 'qwen2'; expected 'llama'"),
        ({"fields": {"general.type": "model"}}, "general.type: found 'model'"),
        ({"fields": {"general.type": None}}, "general.type: found nothing"),
        ({"fields": {"adapter.type": "control"}}, "adapter.type: found 'control'"),
        ({"fields": {"adapter.lora.alpha": 7.0}}, "7.0; expected 6.*lora.alpha=7"),
        ({"fields": {"adapter.lora.alpha": 0.0}}, "adapter.lora.alpha: found 4; expected 6"),
        ({"fields": {"adapter.lora.alpha": math.nan}}, "found nan; expected 6"),
        ({"fields": {"adapter.lora.alpha": "6"}}, "found '6'; expected 6"),
        ({"fields": {"adapter.alora.invocation_tokens": [1, 2]}}, "plain LoRA"),
        ({"tensors": {_B: None}}, f"found no {_B}"),
        ({"tensors": {_A: None, _B: None}}, f"found no {_A} and 1 more"),
        (
            {"tensors": {"output.weight.lora_a": np.ones((4, 64), np.float32)}},
            r"found also output\.weight\.lora_a",
        ),
        ({"tensors": {"\n" * 300: np.ones((4, 64), np.float32)}}, r"also '(\\n){90,}"),
        ({"tensors": {_A: np.ones((4, 65), np.float32)}}, r"lora_a: found the shape \(4, 65\)"),
        ({"tensors": {_B: np.ones((64, 5), np.float32)}}, r"lora_b: found the shape \(64, 5\)"),
        ({"tensors": {_A: np.ones((8, 64), np.float32)}}, "the rank of .*found 8.*lora.r=8"),
        ({"tensors": {_B: np.full((64, 4), np.inf, np.float32)}}, "not finite"),
        ({"tensors": {_B: np.ones((64, 4), np.float64)}}, "of the type F64"),
        ({"kind": gguf.GGMLQuantizationType.F16, "tensors": {}}, ""),
    ],
)
def test_what_cannot_be_read(adapter: Any, changes: dict[str, Any], message: str) -> None:
    file, slots, made = adapter
    _rewrite(file, **changes)
    if not message:  # the way in which the others are written makes a good file
        assert GGUF.read(file, _shapes(slots), made)
        return
    with pytest.raises(StateError, match=message) as caught:
        GGUF.read(file, _shapes(slots), made)
    assert str(file) in caught.value.where and "\n" not in str(caught.value)


def test_a_folder_and_no_file(tmp_path: Path, adapter: Any) -> None:
    _, slots, made = adapter
    for path, message in ((tmp_path, "is a directory"), (tmp_path / "none", "no such file")):
        with pytest.raises(StateError, match=message):
            GGUF.read(path, _shapes(slots), made)


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _head(tensors: int = 0, fields: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields)


def _tensor(name: bytes, sizes: list[int], kind: int = 0, offset: int = 0) -> bytes:
    count = struct.pack("<I", len(sizes))
    return _text(name) + count + struct.pack(f"<{len(sizes)}QIQ", *sizes, kind, offset)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "ends too early"),
        (b"GGML" + bytes(60), "no GGUF file"),
        (_head(version=1), "version 1"),
        (_head(version=3 << 24), "big-endian"),
        (_head(fields=2**64 - 1), "ends too early"),
        (_head(tensors=2**64 - 1), "ends too early"),
        (_head(fields=1) + struct.pack("<Q", 2**64 - 1), "ends too early"),
        (_head(fields=1) + _text(b"\xff") + bytes(9), "not UTF-8"),
        (_head(fields=1) + _text(b"a") + struct.pack("<I", 99), "of the type 99"),
        (_head(fields=1) + _text(b"a") + struct.pack("<IIQ", 9, 0, 2**63), "ends too early"),
        (_head(fields=1) + _text(b"a") + struct.pack("<IIQ", 9, 8, 2**63), "ends too early"),
        (_head(fields=1) + _text(b"a") + struct.pack("<IIQ", 9, 9, 2), "a list of the type 9"),
        (_head(fields=2) + 2 * (_text(b"a") + struct.pack("<IB", 0, 1)), "two entries"),
        (
            _head(fields=1) + _text(b"general.alignment") + struct.pack("<II", 4, 0),
            "the alignment 0",
        ),
        (
            _head(fields=1) + _text(b"general.alignment") + struct.pack("<Id", 12, 8.0),
            "the alignment 8.0",
        ),
        (_head(tensors=1) + _tensor(b"t", [1] * 5), "5 dimensions"),
        (_head(tensors=2) + 2 * _tensor(b"t", [0]), "two entries"),
        (_head(tensors=1) + _tensor(b"t", [2**63, 2**63]), "end beyond the file"),
        (_head(tensors=1) + _tensor(b"t", [4], offset=2**64 - 1), "end beyond the file"),
        (_head(tensors=1) + _tensor(b"t", [33], kind=8), r"of the shape \(33,\), in Q8_0"),
        (_head(tensors=1) + _tensor(b"t", []), r"of the shape \(\)"),
        (_head(tensors=1) + _tensor(b"t", [32], kind=2), "of the type Q4_0"),
        (_head(tensors=1) + _tensor(b"t", [32], kind=777), "of the type 777"),
        (
            _head(fields=1) + _text(b"a") + struct.pack("<IQ", 8, 2 * LONGEST_HEADER)
            + bytes(2 * LONGEST_HEADER),
            "a header beyond",
        ),
    ],
)  # fmt: skip
def test_hostile_headers(content: bytes, message: str, adapter: Any, tmp_path: Path) -> None:
    """One message each, and no more memory than a header."""
    _, slots, made = adapter
    file = tmp_path / "hostile.gguf"
    file.write_bytes(content)
    open_gguf(adapter[0])  # imports take memory of their own
    tracemalloc.start()
    try:
        with pytest.raises(BadGgufError, match=message):
            open_gguf(file)
        assert tracemalloc.get_traced_memory()[1] < 4 * LONGEST_HEADER
    finally:
        tracemalloc.stop()
    with pytest.raises(StateError, match=message):
        GGUF.read(file, _shapes(slots), made)


def test_altered_files_end_in_a_message(adapter: Any) -> None:
    """Cut at any place of the header, or with some bytes altered: read, or refused with one message."""
    file, slots, made = adapter
    content = file.read_bytes()
    generator = random.Random(3)
    begin = min(tensor.place for tensor in open_gguf(file).tensors.values())
    cuts: list[Callable[[], bytes]] = [lambda end=end: content[:end] for end in range(0, begin, 7)]
    cuts.append(lambda: content[:-1])

    def altered() -> bytes:
        changed = bytearray(content)
        for _ in range(generator.randint(1, 4)):
            changed[generator.randrange(begin)] = generator.choice((0, 1, 8, 9, 127, 255))
        return bytes(changed)

    messages = []
    for make in [*cuts, *([altered] * 300)]:
        file.write_bytes(make())
        try:
            GGUF.read(file, _shapes(slots), made)
        except StateError as error:
            messages.append(str(error))
    assert len(messages) > len(cuts)
    assert not any("\n" in message for message in messages)
