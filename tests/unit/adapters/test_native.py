"""What the library writes and reads of arrays, against safetensors and gguf; refusals; and what a failure leaves."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from tests.support.llama_cpp_models import interleaved, ungrouped
from zoexport.adapters import FORMATS, AdapterSettings, adapter_format
from zoexport.core.errors import ConfigError, StateError
from zoexport.session import abi

SETTINGS = AdapterSettings(3, 6.0, "org/base", ("q_proj",))
OWN = b'{"r": 3, "lora_alpha": 6}'
OUTTYPES = {"f32": 0, "f16": 1, "q8_0": 7}
Slots = dict[str, np.ndarray]


def adapter(sizes: dict[str, tuple[int, int]], rank: int, seed: int = 0, scale: float = 1) -> Slots:
    """Random slots for layers of these outputs and inputs."""
    draw = np.random.default_rng(seed)
    slots: Slots = {}
    for module, (outputs, inputs) in sizes.items():
        slots[f"lora_A.{module}"] = scale * draw.standard_normal((inputs, rank), np.float32)
        slots[f"lora_B.{module}"] = scale * draw.standard_normal((rank, outputs), np.float32)
    return slots


def by_safetensors(slots: Slots) -> bytes:
    tensors = {
        f"base_model.model.{module}.{half}.weight": np.ascontiguousarray(values.T)
        for name, values in slots.items()
        for half, _, module in [name.partition(".")]
    }
    content: bytes = save(tensors, metadata={"format": "pt"})
    return content


def by_gguf(
    path: Path, architecture: str, base: str, alpha: float, outtype: str, tensors: Slots
) -> bytes:
    """The file that llama.cpp's own convert_lora_to_gguf.py writes by that package."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_file_type(OUTTYPES[outtype])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if base:
        writer.add_base_model_count(1)
        writer.add_base_model_name(0, base)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    for name, values in sorted(tensors.items()):
        kind = gguf.GGMLQuantizationType[
            "F32" if outtype == "f32" else "F16" if values.shape[1] % 32 else outtype.upper()
        ]
        with np.errstate(all="ignore"):
            encoded = values if kind.name == "F32" else gguf.quantize(values, kind)
        writer.add_tensor(name, encoded, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def turned(slots: Slots, names: dict[str, str], orders: dict[str, Callable[[Any], Any]]) -> Slots:
    """A GGUF file's tensors."""
    tensors = {}
    for module, weight in names.items():
        b = slots[f"lora_B.{module}"].T
        tensors[f"{weight}.lora_a"] = np.ascontiguousarray(slots[f"lora_A.{module}"].T)
        tensors[f"{weight}.lora_b"] = np.ascontiguousarray(orders.get(module, np.asarray)(b))
    return tensors


_BLOCK = "model.layers.11.self_attn"
CASES: dict[str, tuple[str, str, tuple[int, int], dict[str, Any]]] = {
    "llama": (
        "LlamaForCausalLM",
        "llama",
        (6, 2),
        {
            f"{_BLOCK}.q_proj": ("blk.11.attn_q.weight", (60, 37), lambda b: interleaved(b, 6)),
            f"{_BLOCK}.k_proj": ("blk.11.attn_k.weight", (20, 37), lambda b: interleaved(b, 2)),
            f"{_BLOCK}.v_proj": ("blk.11.attn_v.weight", (7, 37), np.asarray),
            "model.layers.2.mlp.down_proj": ("blk.2.ffn_down.weight", (33, 96), np.asarray),
        },
    ),
    "falcon": (
        "FalconForCausalLM",
        "falcon",
        (6, 6),
        {
            f"transformer.h.{block}.self_attention.query_key_value": (
                f"blk.{block}.attn_qkv.weight",
                ((6 + 2 * 2) * 5, 30),
                lambda b: ungrouped(b, 6, 2),
            )
            for block in (0, 10, 9)
        },
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "gpt2",
        (4, 4),
        {
            "transformer.h.0.attn.c_attn": ("blk.0.attn_qkv.weight", (96, 32), np.asarray),
            "transformer.h.0.mlp.c_proj": ("blk.0.ffn_down.weight", (32, 129), np.asarray),
        },
    ),
}


@pytest.mark.parametrize("rank", [1, 3, 32, 33, 64])
@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_of_the_packages(name: str, rank: int, tmp_path: Path) -> None:
    model, architecture, heads, layers = CASES[name]
    slots = adapter({module: shape for module, (_, shape, _) in layers.items()}, rank, seed=rank)
    made = dataclasses.replace(
        SETTINGS,
        rank=rank,
        alpha=rank / 3,
        architecture=model,
        heads=heads,
        fan_in_fan_out=name == "gpt2",
        base_model="" if rank == 3 else "org/bäse",
    )
    FORMATS["peft"].write(slots, made, tmp_path / "peft")
    assert (tmp_path / "peft/adapter_model.safetensors").read_bytes() == by_safetensors(slots)
    content = (tmp_path / "peft/adapter_config.json").read_text("utf-8")
    described = json.loads(content)
    assert content == json.dumps(described, indent=2, sort_keys=True) + "\n"
    assert described["fan_in_fan_out"] == (name == "gpt2") and described["r"] == rank
    names = {module: weight for module, (weight, _, _) in layers.items()}
    orders = {module: order for module, (_, _, order) in layers.items()}
    for outtype in OUTTYPES:
        file = tmp_path / f"{outtype}.gguf"
        adapter_format("gguf", outtype).write(slots, made, file)
        expected = by_gguf(
            tmp_path / "expected",
            architecture,
            made.base_model,
            made.alpha,
            outtype,
            turned(slots, names, orders),
        )
        assert file.read_bytes() == expected


LAYER = ("module", "weight", "inputs", "rank", "outputs", "pairs", "groups", "width")


def written(
    path: Path, slots: Slots, kind: str = "gguf", outtype: str = "f32", **more: Any
) -> Path:
    """Layers of names of their own, by the library alone."""
    modules = [name.removeprefix("lora_B.") for name in slots if name.startswith("lora_B.")]
    layers, kept = [], []
    for module in modules:
        a, b = (np.ascontiguousarray(slots[f"lora_{half}.{module}"], np.float32) for half in "AB")
        kept += [a, b]
        layer: dict[str, Any] = {"module": module, "weight": module}
        (layer["inputs"], layer["rank"]), layer["outputs"] = a.shape, b.shape[1]
        layers.append(layer | {key: value for key, value in more.items() if key in LAYER})
    given: dict[str, Any] = {
        "format": kind,
        "outtype": outtype,
        "layers": layers,
        "description": "{}\n",
        "architecture": "llama",
        "alpha": 2.0,
    }
    given |= {key: value for key, value in more.items() if key not in LAYER}
    matrices = (ctypes.c_void_p * len(kept))(*(matrix.ctypes.data for matrix in kept))
    abi.call(*("zo_adapter_write", abi.options(given), matrices, len(kept), abi.path_bytes(path)))
    return path


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 70),
    st.integers(1, 3),
    st.integers(1, 40),
    st.sampled_from(list(OUTTYPES)),
    st.integers(0, 2**32 - 1),
)
def test_any_bits(
    tmp_path_factory: pytest.TempPathFactory,
    inputs: int,
    blocks: int,
    outputs: int,
    outtype: str,
    seed: int,
) -> None:
    """Every finite number of any size, zeros and halves of the last place; of fewer bits, those that float16 has."""
    draw = np.random.default_rng(seed)
    rank = 32 * blocks if seed % 2 else blocks
    slots = adapter({"blk.0.x": (outputs, inputs)}, rank)
    for name, values in slots.items():
        bits = draw.integers(0, 2**32, values.shape, np.uint32)
        bits &= np.uint32(0xFFFFF000) if seed % 3 == 0 else np.uint32(0xFFFFFFFF)
        found = bits.view(np.float32)
        largest = np.float32(np.finfo(np.float32).max if outtype == "f32" else 65503)
        found = np.where(np.isfinite(found) & (np.abs(found) <= largest), found, 0)
        if seed % 5 == 0:  # rows of a narrow range, down to what no float is the inverse of
            found = found * 0 + np.float32(2.0 ** -draw.integers(1, 149)) * draw.integers(
                -9, 9, values.shape
            )
        slots[name] = found.astype(np.float32)
    folder = tmp_path_factory.mktemp("any")
    file = written(folder / "a.gguf", slots, outtype=outtype)
    tensors = turned(slots, {"blk.0.x": "blk.0.x"}, {})
    assert file.read_bytes() == by_gguf(folder / "b.gguf", "llama", "", 2.0, outtype, tensors)
    folder = written(folder / "peft", slots, "peft")
    assert (folder / "adapter_model.safetensors").read_bytes() == by_safetensors(slots)


def test_numbers_halfway_between_two_codes(tmp_path: Path) -> None:
    """Ties leave zero, as ggml's roundf has it, and not to even."""
    row = np.array([127, *(code + 0.5 for code in range(-15, 16))], np.float32)
    slots = {"lora_A.x": np.stack([row, -row], 1), "lora_B.x": np.ones((2, 3), np.float32)}
    file = written(tmp_path / "a.gguf", slots, outtype="q8_0")
    tensors = turned(slots, {"x": "x"}, {})
    assert file.read_bytes() == by_gguf(tmp_path / "b.gguf", "llama", "", 2.0, "q8_0", tensors)
    (tensor,) = (one for one in gguf.GGUFReader(file).tensors if one.name == "x.lora_a")
    codes = tensor.data[0][2:].view(np.int8).tolist()
    assert codes == [127, *range(-15, 0), *range(1, 17)]


def test_names_are_sorted_by_their_bytes(tmp_path: Path) -> None:
    modules = ["layers.10.é", "layers.2.x", "layers.2.\U0001f600", "layers.2.\uff5e", "L", 'q"\n']
    slots = adapter(dict.fromkeys(modules, (3, 2)), 2)
    folder = written(tmp_path / "peft", slots, "peft")
    assert (folder / "adapter_model.safetensors").read_bytes() == by_safetensors(slots)
    file = written(tmp_path / "a.gguf", slots)
    tensors = turned(slots, {module: module for module in modules}, {})
    assert file.read_bytes() == by_gguf(tmp_path / "b.gguf", "llama", "", 2.0, "f32", tensors)


SMALL = adapter({"x": (6, 5)}, 2)


def changed(value: float) -> Slots:
    return {**SMALL, "lora_B.x": np.where(SMALL["lora_B.x"] == SMALL["lora_B.x"][1, 3], value, 0.5)}


@pytest.mark.parametrize(
    ("slots", "more", "message"),
    [
        ({}, {}, "adapter: found no layers"),
        (SMALL, {"layers": None}, "matrices: found 2; expected 0"),
        (SMALL, {"weight": ""}, "expected a layer with a name"),
        (SMALL, {"module": None, "kind": "peft"}, "layer 1.module: found nothing"),
        (SMALL, {"description": None, "kind": "peft"}, "option 'description': found nothing"),
        (SMALL, {"architecture": None}, "option 'architecture': found nothing"),
        (SMALL, {"architecture": ""}, "no architecture"),
        (SMALL, {"alpha": float("nan")}, "option 'alpha': found nan"),
        (SMALL, {"inputs": 0}, "6 outputs of 0 inputs, with rank 2"),
        (SMALL, {"rank": 2**62}, "at most 1073741824 elements"),
        (SMALL, {"outputs": 2**40, "rank": 2**40}, "at most 1073741824 elements"),
        (SMALL, {"pairs": 2}, "layer x: found 6 outputs; expected pairs of rows in 2 heads"),
        (SMALL, {"pairs": 3, "groups": 1, "width": 1}, "found 6 outputs"),
        (SMALL, {"groups": 1, "width": 3}, "1 groups of queries, a key and a value, 3 rows each"),
        (SMALL, {"groups": 2}, "2 groups .*0 rows each"),
        (SMALL, {"width": 2}, ""),  # no groups: no order
        (SMALL, {"groups": 2**31, "width": 2**31}, "found 6 outputs"),
        (adapter({"x": (6, 5), "y": (6, 5)}, 2), {"weight": "same"}, "two tensors same.lora_a"),
        (SMALL, {"format": "mlx"}, "option 'format': found 'mlx'; expected peft or gguf"),
        (SMALL, {"outtype": "q4"}, "option 'outtype': found 'q4'; expected f32, f16 or q8_0"),
        (SMALL, {"outtype": "f16", "kind": "peft"}, "PEFT's form has one type"),
        (SMALL, {"layer": []}, "option 'layer': found no such option.*Did you mean 'layers'"),
        (changed(np.nan), {}, r"x\.lora_b: found values that are not finite"),
        (changed(-np.inf), {"outtype": "f16"}, "values that are not finite"),
        (changed(np.nan), {"kind": "peft"}, r"x\.lora_B\.weight: found values that are not finite"),
        (changed(-65520), {"outtype": "f16"}, r"'f16': found 65520 in x\.lora_b; expected .*65504"),
        (changed(65519), {"outtype": "f16"}, ""),
        (adapter({"x": (4, 32)}, 1, scale=1e9), {"outtype": "q8_0"}, r"'q8_0': found \S+e\+09 in x\.lora_a"),
    ],
)  # fmt: skip
def test_what_cannot_be_written(
    slots: Slots, more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    if not message:
        assert written(tmp_path / "out", slots, **more).is_file()
        return
    with pytest.raises(ConfigError, match=message) as caught:
        written(tmp_path / "out", slots, **more)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The system refuses longer files, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [1, 300, 4000])
@pytest.mark.parametrize("kind", ["peft", "gguf"])
def test_a_failed_write_leaves_what_was_there(kind: str, size: int, tmp_path: Path) -> None:
    slots = adapter({"x": (600, 40), "y": (20, 700)}, 3)
    out = tmp_path / "folder" / "out"
    written(out, slots, kind)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = adapter({"x": (600, 40), "y": (20, 700)}, 3, seed=1)
    with largest_file(size), pytest.raises(ConfigError, match=r"found File too large.*with room"):
        written(out, other, kind, replace=True)
    with pytest.raises(ConfigError, match="not finite"):
        written(out, changed(np.nan), kind, replace=True)
    with pytest.raises(ConfigError, match="already there"):
        written(out, other, kind)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert list(out.parent.iterdir()) == [out]
    with largest_file(size), pytest.raises(ConfigError, match=r"Nothing was written"):
        written(out.with_name("new"), other, kind)
    with pytest.raises(ConfigError, match=r"Not a directory|not a folder"):
        written(next(iter(before)) / "below", other, kind)
    assert list(out.parent.iterdir()) == [out]
    written(out, other, kind, replace=True)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} != before
    assert list(out.parent.iterdir()) == [out]


def test_a_folder_that_is_replaced_is_the_new_one_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "more").mkdir(parents=True)
    (out / "more" / "old").write_text("old")
    (tmp_path / "out.tmp").write_text("another's")
    written(Path(f"{out}/"), SMALL, "peft", replace=True)
    assert sorted(path.name for path in out.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert out.stat().st_mode & 0o777 == 0o755
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in out.iterdir())
    # A file takes no folder's place.
    with pytest.raises(ConfigError, match="directory"):
        written(out, SMALL, replace=True)
    assert len(list(out.iterdir())) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.tmp"]


def test_a_path_relative_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("a.gguf"), SMALL)
    written(Path("peft"), SMALL, "peft")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "peft"]


def read(path: Path, description: bytes, layers: list[dict[str, Any]], *rooms: int | None) -> None:
    given = {"description": description.decode(), "layers": layers}
    matrices = (ctypes.c_void_p * len(rooms))(*rooms)
    abi.call("zo_adapter_read", abi.path_bytes(path), abi.options(given), matrices, len(rooms))


@pytest.mark.parametrize(
    ("changes", "rooms", "message"),
    [
        (None, 0, "found no layers"),
        ({"module": ""}, 2, "layer 1: found .*; expected a layer with a name"),
        ({}, 1, "matrices: found 1; expected 2"),
        ({}, None, "found a null pointer"),
        ({"rank": 0}, 2, "with rank 0"),
        ({"outputs": 2**62}, 2, "at most 1073741824 elements"),
    ],
)
def test_room_that_is_none(
    changes: dict[str, Any] | None, rooms: int | None, message: str, tmp_path: Path
) -> None:
    room = np.zeros(64, np.float32)
    layer = {"module": "x", "inputs": 5, "rank": 2, "outputs": 6}
    layers = [] if changes is None else [{**layer, **changes}]
    pointers = [None, None] if rooms is None else [room.ctypes.data] * rooms
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, OWN, layers, *pointers)


def test_what_does_not_fit_fills_nothing(tmp_path: Path) -> None:
    """Every layer is compared before the first is given."""
    slots = adapter({"x": (6, 5), "y": (6, 5)}, 3)
    FORMATS["peft"].write(slots, SETTINGS, tmp_path / "peft")
    room = np.full(64, 7, np.float32)
    layers = [
        {"module": module, "inputs": 5, "rank": 3, "outputs": outputs}
        for module, outputs in (("x", 6), ("y", 7))
    ]
    rooms = [room.ctypes.data] * 4
    with pytest.raises(StateError, match=r"y\.lora_B\.weight: found the shape \(6, 3\)"):
        read(tmp_path / "peft", OWN, layers, *rooms)
    assert (room == 7).all()
    other = OWN.replace(b"6", b"5")
    with pytest.raises(StateError, match="'lora_alpha': found 6; expected 5"):
        read(tmp_path / "peft", other, layers, *rooms)
