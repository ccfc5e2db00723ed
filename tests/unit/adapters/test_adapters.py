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

from tests.support.adapter_slots import ALPHA, RANK, slots_of
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
from zoexport.core.graph import Slot
from zoexport.core.lora_scaling import LoraScaling, patterns_of
from zoexport.methods.prge import PrgeConfig
from zoexport.models import adapter_targets
from zoexport.models.conv1d import linear_from_conv1d

PEFT = FORMATS["peft"]


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
    slots = slots_of(model, modules)
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
    slots = slots_of(model, modules)
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


#: By name: what a LoraConfig says of ranks and scales, and how a model's layers are named there.
SCALINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "rsLoRA": ("llama", {"use_rslora": True}),
    "ranks": ("qwen2", {"rank_pattern": {"q_proj": 3, "down_proj": 5}}),
    "alphas": ("phi3", {"alpha_pattern": {"qkv_proj": 2.5, "layers.1.mlp.down_proj": 9}}),
    # Two patterns for one module, of which the first counts; PEFT's own file would sort them.
    "all": (
        "gpt2",
        {
            "use_rslora": True,
            "rank_pattern": {"h.1.attn.c_attn": 7, "c_attn": 2, r"h\.\d\.mlp\..*": 1},
            "alpha_pattern": {"c_fc": 3.5},
        },
    ),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_ranks_and_scales_by_module(name: str, tmp_path: Path) -> None:
    """A model that PEFT wraps with such a config, PEFT's model of our files, and our reading of either's files."""
    from peft import LoraConfig, PeftModel, get_peft_model

    architecture, given = SCALINGS[name]
    model = tiny(architecture)
    fan_in_fan_out = bool(linear_from_conv1d(model))
    modules = adapter_targets(model, "all-linear")
    scaling = LoraScaling(
        RANK,
        ALPHA,
        bool(given.get("use_rslora")),
        given.get("rank_pattern", {}),
        given.get("alpha_pattern", {}),
    )
    scaling.check(modules)
    slots = {}
    for module in modules:
        layer, rank = model.get_submodule(module), scaling.rank_of(module)
        a, b = f"lora_A.{module}", f"lora_B.{module}"
        slots[a] = fixed(a, (layer.in_features, rank)) / math.sqrt(layer.in_features)
        slots[b] = fixed(b, (rank, layer.out_features)) / 4
    ranks = {module: scaling.rank_of(module) for module in modules}
    alphas = {module: scaling.alpha_of(module) for module in modules}
    settings = _settings(
        model,
        modules,
        fan_in_fan_out=fan_in_fan_out,
        rslora=scaling.rslora,
        rank_pattern=patterns_of(ranks, RANK),
        alpha_pattern=patterns_of(alphas, ALPHA),
    )
    PEFT.write(slots, settings, tmp_path / "ours")
    assert read_settings(tmp_path / "ours").scaling == settings.scaling

    config = LoraConfig(
        r=RANK,
        lora_alpha=ALPHA,
        target_modules=list(settings.target_modules),
        fan_in_fan_out=fan_in_fan_out,
        task_type="CAUSAL_LM",
        **given,
    )
    theirs = get_peft_model(tiny(architecture), config).eval()
    with torch.no_grad():
        for path, parameter in theirs.named_parameters():
            for half in ("lora_A", "lora_B"):
                if f".{half}.default.weight" in path:
                    module = path.removeprefix("base_model.model.").partition(f".{half}.")[0]
                    parameter.copy_(slots[f"{half}.{module}"].T)
    expected = _logits(theirs)
    assert (expected - _logits(tiny(architecture))).abs().max() > 0.01
    ours = PeftModel.from_pretrained(tiny(architecture), str(tmp_path / "ours"))
    assert torch.allclose(_logits(ours), expected, atol=2e-5)
    ours.save_pretrained(str(tmp_path / "theirs"))
    shapes = {key: tuple(value.shape) for key, value in slots.items()}
    for folder in ("ours", "theirs"):
        read = PEFT.read(tmp_path / folder, shapes, settings)
        assert all(np.array_equal(read[key], value.numpy()) for key, value in slots.items())
    # What the user's own patterns say, in the order in which they stand.
    path = tmp_path / "ours" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **given}))
    assert PEFT.read(tmp_path / "ours", shapes, settings).keys() == slots.keys()


@pytest.fixture
def adapter(tmp_path: Path) -> tuple[Path, dict[str, tuple[int, ...]], AdapterSettings]:
    model = tiny("llama")
    modules = adapter_targets(model, "attention")
    slots = slots_of(model, modules)
    settings = _settings(model, modules)
    PEFT.write(slots, settings, tmp_path / "adapter")
    return tmp_path / "adapter", {k: tuple(v.shape) for k, v in slots.items()}, settings


def test_the_same_slots_give_the_same_bytes(adapter: Any, tmp_path: Path) -> None:
    folder, _, settings = adapter
    model = tiny("llama")
    slots = slots_of(model, adapter_targets(model, "attention"))
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
        for name, value in slots_of(
            Loaded.model, adapter_targets(Loaded.model, "attention")
        ).items()
    ]
    write_peft_config(tmp_path, slots, PrgeConfig(lora_r=4, lora_alpha=0.5), Loaded)
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


def test_pickled_files_of_older_peft_are_read(adapter: Any) -> None:
    folder, shapes, settings = adapter
    path = folder / "adapter_model.safetensors"
    expected = PEFT.read(folder, shapes, settings)
    torch.save(load_file(path), folder / "adapter_model.bin")
    path.unlink()
    read = PEFT.read(folder, shapes, settings)
    assert all(np.array_equal(read[name], expected[name]) for name in expected)
    # Messages are about this folder, not about a copy.
    tensors = torch.load(folder / "adapter_model.bin")
    tensors["more.lora_A.weight"] = torch.zeros(1, 1)
    torch.save(tensors, folder / "adapter_model.bin")
    with pytest.raises(StateError, match=rf"{folder}/adapter_model\.bin.*more"):
        PEFT.read(folder, shapes, settings)
    torch.save({"run": print}, folder / "adapter_model.bin")
    with pytest.raises(StateError, match=r"adapter_model\.bin.*weights_only=True"):
        PEFT.read(folder, shapes, settings)


#: PEFT's settings under which two matrices a layer are not the adapter.
UNSUPPORTED = [
    "use_dora",
    "use_qalora",
    "lora_bias",
    "modules_to_save",
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
        ({"r": 8}, r"'r': found 8; expected 4.*lora_r=8"),
        ({"r": None}, "'r': found null"),
        ({"lora_alpha": 16}, r"'lora_alpha': found 16; expected 6.*lora_alpha=16"),
        ({"bias": "all"}, 'bias="all"'),
        ({"lora_bias": True, "use_dora": True}, "found use_dora=true, lora_bias=true"),
        ({"modules_to_save": ["lm_head"]}, r'modules_to_save=\["lm_head"\]'),
        (
            {"rank_pattern": {"q_proj": 8}},
            r"the rank of model\.layers\.0\.self_attn\.q_proj: found 8; expected 4.*lora\.rank_pattern",
        ),
        ({"alpha_pattern": {"v_proj": 5}}, r"the scale of .*v_proj: found 1\.25; expected 1\.5"),
        ({"use_rslora": True}, r"the scale of .*q_proj: found 3; expected 1\.5.*lora\.use_rslora"),
        ({"use_rslora": 1}, "'use_rslora': found 1; expected true or false"),
        ({"rank_pattern": True}, "'rank_pattern': found true; expected at most 1024 numbers"),
        ({"rank_pattern": {"q_proj": "8"}}, 'found "8"; expected numbers above 0'),
        ({"alpha_pattern": {r"(q)\1": 8}}, "'alpha_pattern': found .*a regular expression with"),
        ({"alpha_pattern": {"(.+)+q": 8}}, "a pattern of modules: found"),
        ({"alpha_pattern": dict.fromkeys(map(str, range(1025)), 1)}, "found 1025 patterns"),
        ({"init_lora_weights": "pissa"}, 'init_lora_weights="pissa"'),
        *(({key: True}, f"{key}=true; expected LoRA of two") for key in UNSUPPORTED),
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
