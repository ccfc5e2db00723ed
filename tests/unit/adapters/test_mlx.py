"""mlx-lm's files out and in, compared with mlx-lm itself."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx.utils import tree_flatten
from mlx_lm.tuner.lora import LoRALinear
from safetensors.torch import load_file, save_file

from tests.support.adapter_slots import ALPHA, RANK, slots_of
from tests.support.mlx_models import mlx_logits, mlx_model
from tests.support.tiny_models import fixed, fixed_tokens, save_tiny, tiny
from zoexport.adapters import FORMATS, AdapterSettings, adapter_format
from zoexport.core.errors import ConfigError, StateError
from zoexport.methods.reference.adapted import AdaptedModel, low_rank
from zoexport.models import adapter_targets
from zoexport.models.conv1d import linear_from_conv1d

MLX = FORMATS["mlx"]
# What it is for PEFT does not matter here: these files list no paths.
SETTINGS = AdapterSettings(RANK, ALPHA, "org/base", ())
FILES = ["adapter_config.json", "adapters.safetensors"]


def _shapes(slots: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in slots.items()}


def _expected(model: Any, slots: dict[str, torch.Tensor]) -> np.ndarray:
    """Logits of the transformers model with the adapters beside its layers."""
    modules = [name.removeprefix("lora_A.") for name in slots if name.startswith("lora_A.")]
    added = {m: low_rank(slots[f"lora_A.{m}"], slots[f"lora_B.{m}"], ALPHA / RANK) for m in modules}
    with torch.no_grad(), AdaptedModel(model).hooked(added):
        logits: np.ndarray = model(input_ids=fixed_tokens(2, 20), use_cache=False).logits.numpy()
    return logits


def _adapted(model: Any) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(module, LoRALinear)}


@pytest.mark.parametrize(
    ("name", "targets", "layers"),
    [
        ("llama", "attention", "all"),
        ("llama", "all-linear", "last:1"),
        ("llama_tied", "q_proj,down_proj", "last:1"),
        ("qwen2", "all-linear", "all"),
        ("olmo2", "all-linear", "all"),
        ("phi3", "attention", "last:1"),
        ("qwen3", "attention", "all"),
        ("cohere", "all-linear", "last:1"),
    ],
)
def test_mlx_lm_computes_the_same(name: str, targets: str, layers: str, tmp_path: Path) -> None:
    model = tiny(name)
    modules = adapter_targets(model, targets, layers)
    slots = slots_of(model, modules)
    MLX.write(slots, SETTINGS, tmp_path / "adapter")
    loaded = mlx_model(save_tiny(name, tmp_path / "model", tokenizer=False), tmp_path / "adapter")
    assert _adapted(loaded) == set(modules)
    expected = _expected(model, slots)
    assert np.abs(expected - _expected(model, {})).max() > 0.01
    np.testing.assert_allclose(mlx_logits(loaded, fixed_tokens(2, 20)), expected, atol=1e-4)


SCALED = AdapterSettings(
    RANK,
    ALPHA,
    "org/base",
    (),
    rslora=True,
    # Scales of 4 alpha / 2, alpha and alpha / 4.
    rank_pattern={"v_proj": 1, "down_proj": 16},
    alpha_pattern={"q_proj": 4 * ALPHA},
)


def test_ranks_and_scales_by_module(tmp_path: Path) -> None:
    """One rank with zeros, one scale with powers of two in B: mlx-lm computes the same, and it comes back exactly."""
    model = tiny("llama")
    modules = adapter_targets(model, "q_proj,v_proj,down_proj")
    scaling = SCALED.scaling
    slots = {}
    for module in modules:
        layer, rank = model.get_submodule(module), scaling.rank_of(module)
        a, b = f"lora_A.{module}", f"lora_B.{module}"
        slots[a] = fixed(a, (layer.in_features, rank)) / math.sqrt(layer.in_features)
        slots[b] = fixed(b, (rank, layer.out_features)) / 4
    assert len({scaling.scale_of(module) for module in modules}) == 3
    MLX.write(slots, SCALED, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["lora_parameters"]["rank"] == 16
    folder = save_tiny("llama", tmp_path / "model", tokenizer=False)
    loaded = mlx_model(folder, tmp_path / "adapter")
    added = {
        m: low_rank(slots[f"lora_A.{m}"], slots[f"lora_B.{m}"], scaling.scale_of(m))
        for m in modules
    }
    with torch.no_grad(), AdaptedModel(model).hooked(added):
        expected = model(input_ids=fixed_tokens(2, 20), use_cache=False).logits.numpy()
    np.testing.assert_allclose(mlx_logits(loaded, fixed_tokens(2, 20)), expected, atol=1e-4)
    again = MLX.read(tmp_path / "adapter", _shapes(slots), SCALED)
    assert list(again) == list(slots)
    assert all(np.array_equal(again[name], value.numpy()) for name, value in slots.items())
    # A rank above the bundle's does not fit, unless what is beyond it is nothing.
    file = tmp_path / "adapter" / "adapters.safetensors"
    tensors = mx.load(str(file))
    tensors["model.layers.1.self_attn.v_proj.lora_b"][1, 2] = 1
    mx.save_safetensors(str(file), tensors)
    with pytest.raises(StateError, match="an adapter of a rank above 1"):
        MLX.read(tmp_path / "adapter", _shapes(slots), SCALED)


def test_scales_that_no_power_of_two_tells_apart(tmp_path: Path) -> None:
    slots = slots_of(tiny("llama"), adapter_targets(tiny("llama"), "attention"))
    other = dataclasses.replace(SETTINGS, alpha_pattern={"v_proj": 2.5 * ALPHA})
    with pytest.raises(ConfigError, match=r"the scale 1\.5 of .*q_proj and 3\.75 of .*v_proj"):
        MLX.write(slots, other, tmp_path / "adapter")
    assert not list(tmp_path.iterdir())


def test_blocks_may_differ(tmp_path: Path) -> None:
    """The layers that keys name beside those with weights have a lora_b of zero."""
    model = tiny("llama")
    modules = ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"]
    slots = slots_of(model, modules)
    MLX.write(slots, SETTINGS, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["num_layers"] == 2
    assert config["lora_parameters"]["keys"] == ["mlp.up_proj", "self_attn.q_proj"]
    loaded = mlx_model(
        save_tiny("llama", tmp_path / "model", tokenizer=False), tmp_path / "adapter"
    )
    expected = _expected(model, slots)
    np.testing.assert_allclose(mlx_logits(loaded, fixed_tokens(2, 20)), expected, atol=1e-4)
    assert list(MLX.read(tmp_path / "adapter", _shapes(slots), SETTINGS)) == list(slots)


def test_mlx_lm_refuses_blocks_that_are_not_the_last(tmp_path: Path) -> None:
    """Slots do not state how many blocks the model has; a wrong guess must not load."""
    model = tiny("llama")
    MLX.write(slots_of(model, ["model.layers.0.self_attn.q_proj"]), SETTINGS, tmp_path / "adapter")
    folder = save_tiny("llama", tmp_path / "model", tokenizer=False)
    with pytest.raises(ValueError, match="not an adapter parameter"):
        mlx_model(folder, tmp_path / "adapter")


def test_what_mlx_lm_trains_can_be_read(tmp_path: Path) -> None:
    """Its own names and shapes, saved as its trainer saves them, for all layers of the last block."""
    from mlx_lm.tuner.utils import linear_to_lora_layers

    model = tiny("qwen2")
    modules = adapter_targets(model, "all-linear", "last:1")
    shapes = _shapes(slots_of(model, modules))
    theirs = mlx_model(save_tiny("qwen2", tmp_path / "model", tokenizer=False))
    theirs.freeze()
    parameters = {"rank": RANK, "scale": ALPHA / RANK, "dropout": 0.1}
    linear_to_lora_layers(theirs, 1, parameters)
    tensors = dict(tree_flatten(theirs.trainable_parameters()))
    folder = tmp_path / "adapter"
    folder.mkdir()
    mx.save_safetensors(str(folder / "adapters.safetensors"), tensors)
    # An older mlx-lm wrote no type.
    config = {"num_layers": 1, "lora_parameters": parameters}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    read = MLX.read(folder, shapes, SETTINGS)
    for name, values in read.items():
        half, _, module = name.partition(".")
        assert np.array_equal(values, np.array(tensors[f"{module}.{half.lower()}"]))
    assert len(read) == len(tensors) == 14


@pytest.fixture
def adapter(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    model = tiny("llama")
    slots = slots_of(model, adapter_targets(model, "attention"))
    MLX.write(slots, SETTINGS, tmp_path / "adapter")
    return tmp_path / "adapter", slots


def test_files(adapter: Any) -> None:
    folder, slots = adapter
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert json.loads((folder / FILES[0]).read_text()) == {
        "fine_tune_type": "lora",
        "lora_parameters": {
            "dropout": 0.0,
            "keys": ["self_attn.q_proj", "self_attn.v_proj"],
            "rank": 4,
            "scale": 1.5,
        },
        "model": "org/base",
        "num_layers": 2,
    }
    tensors = load_file(folder / FILES[1])
    assert set(tensors) == {
        f"model.layers.{block}.self_attn.{layer}.lora_{half}"
        for block in (0, 1)
        for layer in ("q_proj", "v_proj")
        for half in "ab"
    }
    for name, value in slots.items():
        half, _, module = name.partition(".")
        assert torch.equal(tensors[f"{module}.{half.lower()}"], value)


def test_round_trip(adapter: Any) -> None:
    folder, slots = adapter
    read = MLX.read(folder, _shapes(slots), SETTINGS)
    assert list(read) == list(slots)
    for name, value in read.items():
        assert value.dtype == np.float32 and value.flags.c_contiguous
        assert np.array_equal(value, slots[name].numpy())


def test_the_same_slots_give_the_same_bytes(adapter: Any, tmp_path: Path) -> None:
    folder, slots = adapter
    arrays = {name: slots[name].numpy() for name in reversed(list(slots))}
    MLX.write(arrays, SETTINGS, tmp_path / "again")
    for name in FILES:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    with pytest.raises(ConfigError, match="already there"):
        MLX.write(slots, SETTINGS, folder)
    MLX.write(slots, SETTINGS, folder, replace=True)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("gpt2", "transformer.h.0.attn.c_attn"),
        ("gpt_neox", "gpt_neox.layers.0.attention.query_key_value"),
        ("opt", "model.decoder.layers.0.self_attn.v_proj"),
        ("llama", "lm_head"),
    ],
)
def test_layers_without_a_name_in_mlx_lm(name: str, layer: str, tmp_path: Path) -> None:
    model = tiny(name)
    linear_from_conv1d(model)
    modules = [layer] if layer == "lm_head" else adapter_targets(model, "attention")
    slots = slots_of(model, modules)
    with pytest.raises(ConfigError, match=rf"found the adapted layer {layer}; expected .*model.l"):
        MLX.write(slots, SETTINGS, tmp_path / "adapter")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=rf"found the adapted layer {layer}.*format=.peft"):
        MLX.read(tmp_path, _shapes(slots), SETTINGS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_float_types_are_read(adapter: Any, dtype: torch.dtype) -> None:
    folder, slots = adapter
    path = folder / FILES[1]
    tensors = {name: value.to(dtype) for name, value in load_file(path).items()}
    save_file(tensors, path)
    for name, value in MLX.read(folder, _shapes(slots), SETTINGS).items():
        assert np.array_equal(value, slots[name].to(dtype).float().numpy())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fine_tune_type": "dora"}, "fine_tune_type 'dora'; expected 'lora'"),
        ({"fine_tune_type": "full"}, "fine_tune_type 'full'"),
        ({"lora_parameters": None}, "no lora_parameters"),
        ({"lora_parameters": None, "peft_type": "LORA"}, "a PEFT adapter.*format=.peft"),
        ({"lora_parameters": {}}, "'rank': found None; expected 4"),
        (
            {"lora_parameters": {"rank": 8, "scale": 1.5}},
            r"'rank': found 8; expected 4.*lora_r=8",
        ),
        ({"lora_parameters": {"rank": 4}}, r"'scale': found None; expected 1\.5"),
        (
            {"lora_parameters": {"rank": 4, "scale": 20.0}},
            r"'scale': found 20\.0; expected 1\.5.*lora_alpha=80",
        ),
        ({"lora_parameters": {"rank": 4, "scale": math.nan}}, "NaN is no number"),
        ({"lora_parameters": {"rank": 4, "scale": "1.5"}}, "'scale': found '1.5'"),
    ],
)
def test_configs_that_do_not_fit(adapter: Any, changes: dict[str, Any], message: str) -> None:
    folder, slots = adapter
    path = folder / FILES[0]
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(StateError, match=message):
        MLX.read(folder, _shapes(slots), SETTINGS)


def test_a_scale_may_have_been_a_float32(adapter: Any) -> None:
    folder, slots = adapter
    settings = AdapterSettings(RANK, 0.7, "org/base", ())
    scale = float(np.float32(0.7 / RANK))
    assert scale != 0.7 / RANK
    path = folder / FILES[0]
    path.write_text(json.dumps({"lora_parameters": {"rank": RANK, "scale": scale}}))
    assert MLX.read(folder, _shapes(slots), settings)


FIRST = "model.layers.0.self_attn.q_proj.lora_a"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop(FIRST), rf"found no {FIRST}; expected the 4 layers"),
        (
            lambda t: t.update({FIRST.replace("q_proj", "k_proj"): t[FIRST].clone()}),
            r"found also model.layers.0.self_attn.k_proj.lora_a",
        ),
        (
            lambda t: t.update({FIRST.replace("lora_a", "m"): torch.ones(64)}),
            r"found also model.layers.0.self_attn.q_proj.m;",
        ),
        (lambda t: t.update({FIRST: torch.ones(64, 8)}), r"\(64, 8\); expected \(64, 4\)"),
        (lambda t: t.update({FIRST: torch.ones(4, 64)}), r"\(4, 64\); expected \(64, 4\)"),
        (lambda t: t[FIRST].fill_(math.inf), f"{FIRST}: found values that are not finite"),
        (lambda t: t.update({FIRST: torch.ones(64, 4, dtype=torch.int8)}), "the type I8"),
    ],
)
def test_weights_that_do_not_fit(
    adapter: Any, edit: Callable[[dict[str, torch.Tensor]], Any], message: str
) -> None:
    folder, slots = adapter
    path = folder / FILES[1]
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)
    with pytest.raises(StateError, match=message):
        MLX.read(folder, _shapes(slots), SETTINGS)


def test_damaged_files(adapter: Any, tmp_path: Path) -> None:
    folder, slots = adapter
    shapes = _shapes(slots)
    with pytest.raises(StateError, match=r"no such file.*adapters\.safetensors.*mlx-lm"):
        MLX.read(tmp_path / "nothing", shapes, SETTINGS)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    weights = copy / FILES[1]
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(StateError, match="a damaged file"):
        MLX.read(copy, shapes, SETTINGS)
    weights.unlink()
    with pytest.raises(StateError, match=r"adapters\.safetensors: found no such file"):
        MLX.read(copy, shapes, SETTINGS)
    for content, message in (("{", "bad JSON"), ("[]", "a JSON list")):
        (copy / FILES[0]).write_text(content)
        with pytest.raises(StateError, match=message):
            MLX.read(copy, shapes, SETTINGS)


def test_it_has_a_name() -> None:
    assert adapter_format("mlx") is MLX
    with pytest.raises(ConfigError, match="one of gguf, mlx, peft"):
        adapter_format("npz")


def test_mlx_is_not_imported() -> None:
    code = (
        "import sys, zoexport.adapters, zoexport.run.transfer\n"
        "assert not {'mlx', 'mlx_lm', 'peft'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
