"""The Python API's arguments: what becomes of them, and what is refused before anything is compiled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import BitsAndBytesConfig

import zoexport
from tests.support.bundles import write_bundle
from tests.support.tiny_models import tiny, tiny_tokenizer
from zoexport.adapters.lora_config import settings_of
from zoexport.core.errors import BundleError, ConfigError, DataError, ModelError
from zoexport.models import load, resolve
from zoexport.models.live import keep


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZOEXPORT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_importing_the_package_loads_no_compiler() -> None:
    code = (
        "import sys, zoexport; zoexport.Bundle; zoexport.compile; zoexport.Session; "
        "print([name for name in ('torch', 'numpy', 'transformers', 'executorch', 'mlx', 'flwr', "
        "'coremltools', 'optimum') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_exported_name_is_there() -> None:
    assert all(getattr(zoexport, name) is not None for name in zoexport.__all__)
    with pytest.raises(AttributeError, match="no attribute 'compilers'"):
        _ = zoexport.compilers


# ---- LoraConfig ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"r": 4, "lora_alpha": 6}, {"lora.r": 4, "lora.alpha": 6.0}),
        (
            {"use_rslora": True, "rank_pattern": {"q": 2}, "alpha_pattern": {"v": 3}},
            {
                "lora.use_rslora": True,
                "lora.rank_pattern": {"q": 2},
                "lora.alpha_pattern": {"v": 3},
            },
        ),
        ({"lora_dropout": 0.1}, {"lora.dropout": 0.1}),
        ({"target_modules": "all-linear"}, {"lora.target_modules": "all-linear"}),
        ({"target_modules": ["v_proj", "q_proj"]}, {"lora.target_modules": ["q_proj", "v_proj"]}),
        (
            {"layers_to_transform": [0, 4], "target_modules": ["q"]},
            {"lora.layers_to_transform": [0, 4], "lora.target_modules": ["q"]},
        ),
        ({"task_type": "CAUSAL_LM", "fan_in_fan_out": True}, {}),
    ],
)
def test_a_lora_config_becomes_settings(given: dict[str, Any], settings: dict[str, Any]) -> None:
    found = settings_of(peft.LoraConfig(**given))
    assert found.items() >= settings.items()
    assert {"lora.r", "lora.alpha"} <= found.keys()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"use_dora": True}, "use_dora=True"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save=\['lm_head'\]"),
        ({"use_dora": True, "bias": "all"}, "bias='all', use_dora=True"),
        ({"init_lora_weights": "gaussian"}, "init_lora_weights='gaussian'"),
        ({"exclude_modules": ["v_proj"]}, "exclude_modules="),
        ({"target_modules": ".*q_proj"}, "a pattern"),
    ],
)
def test_what_adapters_cannot_do_is_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        settings_of(peft.LoraConfig(**given))


def test_something_else_than_a_lora_config() -> None:
    with pytest.raises(ConfigError, match="found a dict"):
        settings_of({"r": 8})


def test_a_lora_config_beside_the_same_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"LoraConfig beside the settings lora\.r"):
        zoexport.compile("somewhere", lora=peft.LoraConfig(), lora_r=4, output=tmp_path / "bundle")


def test_a_lora_config_for_a_method_without_adapters(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a method that trains no adapters"):
        zoexport.compile("somewhere", method="senszoq", lora=peft.LoraConfig())


# ---- live models -----------------------------------------------------------------------------------------------------


def test_a_live_model_is_kept_once_with_its_values(cache: Path) -> None:
    model = tiny("llama")
    source = keep(model, tiny_tokenizer())
    assert source.path is not None and source.path.is_relative_to(cache)
    assert keep(model, tiny_tokenizer()) == source
    loaded = load(resolve(source.argument))
    assert loaded.tokenizer is not None
    for name, values in model.state_dict().items():
        torch.testing.assert_close(loaded.model.state_dict()[name], values, rtol=0, atol=0)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    assert keep(model, tiny_tokenizer()).path != source.path
    assert not list(source.path.parents[1].glob("saving-*"))


def quantized() -> Any:
    model = tiny("llama")
    model.hf_quantizer = BitsAndBytesConfig(load_in_8bit=True)
    return model


@pytest.mark.parametrize(
    ("make", "tokenizer", "found"),
    [
        (lambda: tiny("llama"), None, "a live model and no tokenizer"),
        (lambda: tiny("llama"), "a name", "a live model and a str"),
        (lambda: torch.nn.Linear(2, 2), tiny_tokenizer(), r"torch\.nn\.modules\.linear\.Linear"),
        (lambda: tiny("llama").to("meta"), tiny_tokenizer(), "meta device"),
        (quantized, tiny_tokenizer(), "a quantized model"),
        (
            lambda: peft.get_peft_model(
                tiny("llama"), peft.LoraConfig(target_modules="all-linear")
            ),
            tiny_tokenizer(),
            "a model with adapters",
        ),
    ],
    ids=["no tokenizer", "a tokenizer's name", "no language model", "meta", "quantized", "peft"],
)
def test_live_models_that_are_refused(cache: Path, make: Any, tokenizer: Any, found: str) -> None:
    with pytest.raises(ModelError, match=found):
        zoexport.compile(make(), tokenizer=tokenizer, output=cache / "bundle")
    assert not list(cache.rglob("*"))


def test_a_tokenizer_beside_a_folder() -> None:
    with pytest.raises(ConfigError, match="which brings its own"):
        zoexport.compile("folder", tokenizer=tiny_tokenizer())


# ---- bundles ---------------------------------------------------------------------------------------------------------


def test_unknown_settings_are_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'lora_alhpa'.*lora\.alpha"):
        zoexport.compile("somewhere", settings={"lora_alhpa": 8})


def test_a_folder_that_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no manifest\.json"):
        zoexport.Bundle.open(tmp_path)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ([{"text": "good"}, "bad"], "example 1: found a str"),
        ([{"text": object()}], "example 0: found a value of type object"),
        ([{"text": float("nan")}], "example 0"),
    ],
)
def test_examples_that_are_none(tmp_path: Path, data: list[Any], found: str) -> None:
    bundle = zoexport.Bundle.open(write_bundle(tmp_path / "bundle"))
    with pytest.raises(DataError, match=found):
        bundle.train(data, state=tmp_path / "state", steps=1)
    assert not (tmp_path / "state").exists()
