"""PEFT files out and in, compared with PEFT itself."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny_models import fixed, fixed_tokens, tiny
from zoexport.adapters import (
    FORMATS,
    AdapterSettings,
    adapter_format,
    read_settings,
    target_modules,
    write_peft_config,
)
from zoexport.core.errors import ConfigError, StateError
from zoexport.core.types import Slot
from zoexport.models import adapter_targets
from zoexport.models.conv1d import linear_from_conv1d

RANK, ALPHA = 4, 6.0
PEFT = FORMATS["peft"]


def _slots(model: Any, modules: list[str]) -> dict[str, torch.Tensor]:
    slots = {}
    for module in modules:
        layer = model.get_submodule(module)
        a, b = f"lora_A.{module}", f"lora_B.{module}"
        slots[a] = fixed(a, (layer.in_features, RANK)) / math.sqrt(layer.in_features)
        slots[b] = fixed(b, (RANK, layer.out_features)) / 2
    return slots


def _settings(model: Any, modules: list[str], **changes: Any) -> AdapterSettings:
    values: dict[str, Any] = {
        "rank": RANK,
        "alpha": ALPHA,
        "base_model": "org/base",
        "target_modules": tuple(target_modules(model, modules)),
    }
    return AdapterSettings(**{**values, **changes})


def _logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=fixed_tokens(2, 20), use_cache=False).logits
    return logits


def _with_slots(model: Any, slots: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits of the model with y + (x A) B alpha / rank at every adapted layer."""

    def hook(module: str) -> Callable[[Any, Any, torch.Tensor], torch.Tensor]:
        a, b = slots[f"lora_A.{module}"], slots[f"lora_B.{module}"]
        return lambda _, inputs, output: output + inputs[0] @ a @ b * (ALPHA / RANK)

    modules = [name.removeprefix("lora_A.") for name in slots if name.startswith("lora_A.")]
    handles = [model.get_submodule(m).register_forward_hook(hook(m)) for m in modules]
    logits = _logits(model)
    for handle in handles:
        handle.remove()
    return logits


CASES = [
    ("llama", "attention", "all"),
    ("llama_tied", "all-linear", "last:1"),
    ("gemma3", "attention", "last:2"),
    ("qwen2", "q_proj,down_proj", "all"),
    ("opt", "all-linear", "all"),
    ("phi3", "attention", "last:1"),
    ("gpt2", "attention", "all"),
    ("gpt2", "all-linear", "last:1"),
    ("gpt_neox", "attention", "all"),
    ("falcon", "attention", "all"),
    ("mpt", "all-linear", "all"),
]


@pytest.mark.parametrize(("name", "targets", "layers"), CASES)
def test_peft_computes_the_same(name: str, targets: str, layers: str, tmp_path: Path) -> None:
    from peft import PeftModel

    model = tiny(name)
    fan_in_fan_out = bool(linear_from_conv1d(model))
    modules = adapter_targets(model, targets, layers)
    slots = _slots(model, modules)
    settings = _settings(model, modules, fan_in_fan_out=fan_in_fan_out)
    PEFT.write(slots, settings, tmp_path / "adapter")
    # PEFT gets the original model, with GPT-2's Conv1D where it has them.
    base = tiny(name)
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    adapted = {
        path.removeprefix("base_model.model.").removesuffix(".lora_A.default")
        for path, _ in loaded.named_modules()
        if path.endswith(".lora_A.default")
    }
    assert adapted == set(modules)
    expected = _with_slots(model, slots)
    assert (expected - _logits(tiny(name))).abs().max() > 0.01
    assert torch.allclose(_logits(loaded), expected, atol=2e-5)
    assert torch.allclose(_logits(loaded.merge_and_unload()), expected, atol=2e-5)


@pytest.mark.parametrize(("name", "targets", "layers"), CASES)
def test_what_peft_saves_can_be_read(name: str, targets: str, layers: str, tmp_path: Path) -> None:
    from peft import PeftModel

    model = tiny(name)
    fan_in_fan_out = bool(linear_from_conv1d(model))
    modules = adapter_targets(model, targets, layers)
    slots = _slots(model, modules)
    settings = _settings(model, modules, fan_in_fan_out=fan_in_fan_out)
    PEFT.write(slots, settings, tmp_path / "ours")
    PeftModel.from_pretrained(tiny(name), str(tmp_path / "ours")).save_pretrained(
        str(tmp_path / "theirs")
    )
    shapes = {key: tuple(value.shape) for key, value in slots.items()}
    for folder in ("ours", "theirs"):
        read = PEFT.read(tmp_path / folder, shapes, settings)
        assert list(read) == list(slots)
        for key, value in read.items():
            assert value.dtype == np.float32 and value.flags.c_contiguous
            assert np.array_equal(value, slots[key].numpy())
    theirs = read_settings(tmp_path / "theirs")
    assert (theirs.rank, theirs.alpha) == (RANK, ALPHA)
    assert theirs.fan_in_fan_out == fan_in_fan_out


@pytest.fixture
def adapter(tmp_path: Path) -> tuple[Path, dict[str, tuple[int, ...]], AdapterSettings]:
    model = tiny("llama")
    modules = adapter_targets(model, "attention")
    slots = _slots(model, modules)
    settings = _settings(model, modules)
    PEFT.write(slots, settings, tmp_path / "adapter")
    return tmp_path / "adapter", {k: tuple(v.shape) for k, v in slots.items()}, settings


def test_the_same_slots_give_the_same_bytes(adapter: Any, tmp_path: Path) -> None:
    folder, _, settings = adapter
    model = tiny("llama")
    slots = _slots(model, adapter_targets(model, "attention"))
    arrays = {name: slots[name].numpy() for name in reversed(list(slots))}
    PEFT.write(arrays, settings, tmp_path / "again")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    with pytest.raises(ConfigError, match="already there"):
        PEFT.write(slots, settings, folder)
    PEFT.write(slots, settings, folder, replace=True)


def test_config_has_only_keys_that_peft_knows(adapter: Any) -> None:
    from peft import LoraConfig

    folder, _, _ = adapter
    content = json.loads((folder / "adapter_config.json").read_text())
    assert set(content) <= set(LoraConfig().to_dict())
    assert content["target_modules"] == ["q_proj", "v_proj"]
    assert content["lora_alpha"] == 6 and content["r"] == 4
    config = LoraConfig.from_pretrained(str(folder))
    assert config.base_model_name_or_path == "org/base"
    assert config.task_type == "CAUSAL_LM"


def test_short_names_only_where_they_match_nothing_else() -> None:
    model = tiny("llama")
    for layers in ("all", "last:1"):
        modules = adapter_targets(model, "attention", layers)
        names = target_modules(model, modules)
        assert names == (["q_proj", "v_proj"] if layers == "all" else modules)
    # GPT-2 calls a layer of its attention and one of its MLP c_proj.
    model = tiny("gpt2")
    linear_from_conv1d(model)
    modules = adapter_targets(model, "attn.c_proj")
    assert target_modules(model, modules) == modules


def test_bundle_config(tmp_path: Path) -> None:
    class Loaded:
        model = tiny("llama")
        base = "org/base"
        fan_in_fan_out = False
        masked = False

    slots = [
        Slot(name, "trainable", "float32", tuple(value.shape), 0, name.partition(".")[2])
        for name, value in _slots(Loaded.model, adapter_targets(Loaded.model, "attention")).items()
    ]
    write_peft_config(tmp_path, slots, {"lora.rank": 4, "lora.alpha": 0.5, "lr": 1.0}, Loaded)
    assert read_settings(tmp_path) == AdapterSettings(4, 0.5, "org/base", ("q_proj", "v_proj"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_are_read(adapter: Any, dtype: torch.dtype) -> None:
    folder, shapes, settings = adapter
    path = folder / "adapter_model.safetensors"
    tensors = {name: value.to(dtype) for name, value in load_file(path).items()}
    save_file(tensors, path)
    for name, value in PEFT.read(folder, shapes, settings).items():
        half, _, module = name.partition(".")
        original = tensors[f"base_model.model.{module}.{half}.weight"]
        assert np.array_equal(value, original.float().T.numpy())


def test_names_of_older_peft_are_read(adapter: Any) -> None:
    folder, shapes, settings = adapter
    path = folder / "adapter_model.safetensors"
    expected = PEFT.read(folder, shapes, settings)
    renamed = {k.replace(".weight", ".default.weight"): v for k, v in load_file(path).items()}
    save_file(renamed, path)
    read = PEFT.read(folder, shapes, settings)
    assert all(np.array_equal(read[name], expected[name]) for name in expected)


#: PEFT's settings under which two matrices a layer are not the adapter.
UNSUPPORTED = [
    "use_rslora",
    "use_dora",
    "use_qalora",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, 'peft_type "IA3"'),
        ({"r": 8}, r"'r': found 8; expected 4.*lora\.rank=8"),
        ({"r": None}, "'r': found null"),
        ({"lora_alpha": 16}, r"'lora_alpha': found 16; expected 6.*lora\.alpha=16"),
        ({"bias": "all"}, 'bias="all"'),
        ({"lora_bias": True, "use_dora": True}, "found use_dora=true, lora_bias=true"),
        ({"modules_to_save": ["lm_head"]}, r'modules_to_save=\["lm_head"\]'),
        ({"rank_pattern": {"q_proj": 8}}, 'rank_pattern={"q_proj":8}'),
        ({"init_lora_weights": "pissa"}, 'init_lora_weights="pissa"'),
        *(({key: True}, f"{key}=true; expected plain LoRA") for key in UNSUPPORTED),
    ],
)
def test_configs_that_do_not_fit(adapter: Any, changes: dict[str, Any], message: str) -> None:
    folder, shapes, settings = adapter
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(StateError, match=message):
        PEFT.read(folder, shapes, settings)


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop(FIRST), rf"found no {FIRST}; expected the layers that the bundle adapts"),
        (
            lambda t: t.update({FIRST.replace("q_proj", "k_proj"): t[FIRST].clone()}),
            r"found also base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight",
        ),
        (lambda t: t.update({"base_model.model.lm_head.weight": torch.ones(1)}), "also .*lm_head"),
        (lambda t: t.update({FIRST: torch.ones(8, 64)}), r"\(8, 64\); expected \(4, 64\)"),
        (lambda t: t.update({FIRST: torch.ones(64, 4)}), r"\(64, 4\); expected \(4, 64\)"),
        (lambda t: t[FIRST].fill_(math.nan), "not finite"),
        (lambda t: t.update({FIRST: torch.ones(4, 64, dtype=torch.int8)}), "the type I8"),
    ],
)
def test_weights_that_do_not_fit(
    adapter: Any, edit: Callable[[dict[str, torch.Tensor]], Any], message: str
) -> None:
    folder, shapes, settings = adapter
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)
    with pytest.raises(StateError, match=message):
        PEFT.read(folder, shapes, settings)


def test_damaged_files(adapter: Any, tmp_path: Path) -> None:
    folder, shapes, settings = adapter
    with pytest.raises(StateError, match="No such file"):
        PEFT.read(tmp_path / "nothing", shapes, settings)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    weights = copy / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(StateError, match=r"found .* bytes of data"):
        PEFT.read(copy, shapes, settings)
    weights.unlink()
    with pytest.raises(StateError, match=r"adapter_model\.safetensors: found No such file"):
        PEFT.read(copy, shapes, settings)
    for content, message in (("{", "not JSON"), ("[]", "no object")):
        (copy / "adapter_config.json").write_text(content)
        with pytest.raises(StateError, match=message):
            PEFT.read(copy, shapes, settings)
    (copy / "adapter_config.json").write_text('{"r": 4}')
    with pytest.raises(StateError, match="no usable LoRA description"):
        read_settings(copy)


def test_formats_have_names() -> None:
    assert adapter_format("peft") is PEFT
    with pytest.raises(ConfigError, match=r"'petf'.*Did you mean 'peft'"):
        adapter_format("petf")
