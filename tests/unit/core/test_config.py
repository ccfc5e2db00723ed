"""Settings: defaults, types, and one message for everything that is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from zoexport.compiler.plan import plan
from zoexport.core.config import as_dict, parse, parse_assignments
from zoexport.core.errors import ConfigError
from zoexport.methods import methods
from zoexport.methods.prge import PrgeConfig

ZEROTH_ORDER = {
    "max_length": 64,
    "batch_size": 4,
    "weights": "int4",
    "activations": "int8",
    "compute": "fp32",
    "soc": None,
    "group_size": 32,
    "scale_steps": False,
    "lora.r": 16,
    "lora.alpha": 16.0,
    "lora.use_rslora": False,
    "lora.rank_pattern": {},
    "lora.alpha_pattern": {},
    "lora.init_weights": "random",
    "lora.dropout": 0.0,
    "lora.target_modules": "attention",
    "lora.layers_to_transform": "all",
    "num_queries": 4,
    "eps": 1e-2,
    "labels": None,
    "granularity": "layer",
    "optimizer": "sgd",
    "beta1": 0.9,
    "beta2": 0.99,
    "horizon": 10,
    "gradient_accumulation_steps": 1,
    "hidden_state_cache_mb": 0,
    "learning_rate": 2e-3,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "loss": "full",
    "dpo.beta": 0.1,
    "orpo.beta": 0.1,
    "choices": "sum",
    "pack": False,
    "append_eos": True,
    "mask_history": False,
    "seed": 0,
    "generate": True,
    "generate.context": 1024,
    "generate.activations": "fp32",
}

MEZO = {**ZEROTH_ORDER, "train": "lora", "difference": "central"}

FIRST_ORDER = {
    **{
        key: value
        for key, value in ZEROTH_ORDER.items()
        if key not in ("num_queries", "eps", "labels", "granularity", "beta1", "beta2", "horizon")
    },
    "max_length": 256,
    "batch_size": 1,
    "activations": "fp32",
    "optimizer": "adamw",
    "momentum": 0.0,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "checkpoint_every": 1,
    "activation_cache_mb": 0,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "linear",
}


@pytest.mark.parametrize(
    ("method", "defaults"),
    [("prge", ZEROTH_ORDER), ("mezo", MEZO), ("mebp", FIRST_ORDER), (None, FIRST_ORDER)],
)
def test_defaults_are_the_documented_ones(method: str | None, defaults: dict[str, object]) -> None:
    assert as_dict(plan(method, "android-cpu", {}).config) == defaults


@pytest.mark.parametrize(
    ("method", "settings", "rates"),
    [
        ("mezo", {"train": "full"}, (1e-3, 2e-5)),
        ("mezo", {"train": "full", "learning_rate": 1e-3, "eps": 1e-2}, (1e-2, 1e-3)),
        ("spzo", {}, (1e-2, 1e-3)),
        ("spzo", {"train": "full"}, (1e-3, 1e-5)),
        ("fzoo", {}, (1e-2, 5e-3)),
        ("fzoo", {"activations": "fp32"}, (1e-3, 5e-3)),
        ("fzoo", {"weights": "int8"}, (1e-2, 5e-3)),
        ("senszoq", {"mask": "mask"}, (1e-3, 1e-4)),
    ],
)
def test_rates_follow_what_is_trained(
    method: str, settings: dict[str, object], rates: tuple[float, float]
) -> None:
    """docs/models.md has the measurements."""
    config: Any = plan(method, "host", settings).config
    assert (config.eps, config.learning_rate) == rates


def test_programs_of_the_whole_model_take_the_larger_scale() -> None:
    assert plan("fzoo", "ios-mlx", {"weights": "fp32"}).config.eps == 1e-2


@pytest.mark.parametrize(
    ("method", "settings", "activations"),
    [
        *((method, {}, "int8") for method in ("prge", "mezo", "fzoo")),
        *((method, {}, "fp32") for method in ("mebp", "spzo", "quzo")),
        ("senszoq", {"mask": "mask"}, "fp32"),
        ("prge", {"activations": "fp32"}, "fp32"),
        ("prge", {"weights": "int8"}, "int8"),
        ("prge", {"weights": "fp32"}, "fp32"),
        ("prge", {"compute": "bf16"}, "fp32"),
        ("mezo", {"train": "full"}, "fp32"),
    ],
)
def test_inputs_of_quantized_layers_are_rounded_where_nothing_is_said(
    method: str, settings: dict[str, str], activations: str
) -> None:
    assert plan(method, "android-cpu", settings).config.activations == activations


def test_gradients_go_through_no_rounded_inputs() -> None:
    with pytest.raises(ConfigError, match="no gradient goes through inputs that are rounded"):
        plan("mebp", "android-cpu", {"activations": "int8"})


@pytest.mark.parametrize("method", ["mezo", "spzo"])
def test_weights_that_are_trained(method: str) -> None:
    """In fp32 and by layers, which need not be said."""
    chosen = plan(method, "host", {"train": "full"}).config
    assert chosen.weights == "fp32" and chosen.staged and chosen.trained == "weights"
    with pytest.raises(ConfigError, match=r"train=full, weights=int8.* integers cannot follow"):
        plan(method, "host", {"train": "full", "weights": "int8"})


def test_weights_that_are_trained_lie_outside_of_programs() -> None:
    with pytest.raises(ConfigError, match=r"train=full, granularity=model.* Leave granularity out"):
        plan("mezo", "host", {"train": "full", "granularity": "model"})


def test_fp32_weights_alone_mean_fp32_activations() -> None:
    assert plan("prge", "android-cpu", {"weights": "fp32"}).config.activations == "fp32"


def test_values_keep_their_types() -> None:
    config = parse(
        PrgeConfig,
        {"lora.r": "8", "learning_rate": "1e-4", "seed": str(2**64 - 1), "batch_size": 2},
    )
    assert (config.lora_r, config.learning_rate, config.seed, config.batch_size) == (
        8,
        1e-4,
        2**64 - 1,
        2,
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lora.rnk": "8"}, "Did you mean 'lora.r'"),
        ({"lora.r": "0"}, "a whole number of at least 1"),
        ({"num_queries": "0"}, "a whole number of at least 1"),
        ({"num_queries": "2.5"}, "a whole number of at least 1"),
        ({"num_queries": "many"}, "a whole number of at least 1"),
        ({"eps": "0"}, "a number above 0"),
        ({"eps": "nan"}, "a number above 0"),
        ({"learning_rate": "inf"}, "a number above 0"),
        ({"seed": "-1"}, "a whole number of at least 0"),
        ({"seed": str(2**64)}, "a whole number of at least 0"),
        ({"max_length": "1"}, "a whole number of at least 2"),
        ({"weights": "int5"}, "Did you mean 'int"),
        ({"batch_size": True}, "a whole number of at least 1"),
        ({"lora.rank_pattern": "q_proj"}, "numbers by name"),
        ({"lora.rank_pattern": "{q_proj:8}"}, "a whole number of at least 1"),
        ({"lora.rank_pattern": "{1: 8}"}, "numbers by name"),
        ({"lora.rank_pattern": "{q_proj: 2.5}"}, "a whole number of at least 1"),
        ({"lora.rank_pattern": {"q_proj": 0}}, "'lora.rank_pattern: q_proj'"),
        ({"lora.alpha_pattern": "{q_proj: 0}"}, "a number above 0"),
        ({"lora.alpha_pattern": "["}, "numbers by name"),
        ({"lora.use_rslora": "maybe"}, "true or false"),
        ({"generate": 1}, "true or false"),
        ({"max_length": [64]}, "a whole number of at least 2"),
        ({"weights": ["int4"]}, "one of fp32, int8, int4"),
    ],
)
def test_impossible_values(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        parse(PrgeConfig, values)


def test_numbers_by_name_as_text_and_as_mappings() -> None:
    for given in (
        {"lora.rank_pattern": "{q_proj: 8}", "lora.alpha_pattern": r'{"layers\\.1\\..*": 2}'},
        {"lora.rank_pattern": {"q_proj": 8.0}, "lora.alpha_pattern": {r"layers\.1\..*": "2"}},
    ):
        config = parse(PrgeConfig, given)
        assert config.lora_rank_pattern == {"q_proj": 8}
        assert config.lora_alpha_pattern == {r"layers\.1\..*": 2.0}
        again = parse(PrgeConfig, json.loads(json.dumps(as_dict(config))))
        assert again == config


def test_booleans() -> None:
    """As YAML has them, in recipes and as text."""
    for given in (True, "true", "True", "on", "yes"):
        assert parse(PrgeConfig, {"lora.use_rslora": given}).lora_use_rslora is True
    for given in (False, "false", "False", "off", "no"):
        assert parse(PrgeConfig, {"generate": given}).generate is False


def test_lists_are_names_separated_by_commas() -> None:
    found = parse(
        PrgeConfig,
        {"lora.target_modules": ["q_proj", "v_proj"], "lora.layers_to_transform": [0, 3]},
    )
    assert found.modules == ("q_proj,v_proj", "0,3")


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ConfigError, match="3 problems") as error:
        parse(PrgeConfig, {"eps": "0", "nonsense": "1", "loss": "half"})
    for part in ("'eps'", "'nonsense'", "'loss'"):
        assert part in str(error.value)


def test_what_is_compiled_in_cannot_change_at_run_time() -> None:
    assert parse(PrgeConfig, {"learning_rate": "0.1"}, runtime_only=True).learning_rate == 0.1
    with pytest.raises(ConfigError, match=r"Compile again with lora_r=8"):
        parse(PrgeConfig, {"lora.r": "8"}, runtime_only=True)


@pytest.mark.parametrize(
    "settings",
    [
        {"weights": "fp32", "activations": "int8"},
        {"compute": "fp16"},
    ],
)
def test_combinations_that_the_target_cannot_run(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="a combination that the target can run"):
        plan("prge", "android-cpu", settings)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"one of fzoo, mebp, mezo, prge.*Did you mean 'prge'"):
        plan("prgee", "android-cpu", {})
    with pytest.raises(ConfigError, match="Did you mean 'android-gpu'"):
        plan("prge", "android-gpu2", {})


def test_assignments() -> None:
    assert parse_assignments(["a=1", "b.c = x=y "]) == {"a": "1", "b.c": "x=y"}
    with pytest.raises(ConfigError, match="no key=value"):
        parse_assignments(["lora.r"])


@pytest.mark.parametrize(
    ("method", "key", "value", "fix"),
    [
        ("quzo", "weight_bits", "8", "Did you mean 'weights'"),
        ("quzo", "optimizer", "sgd", "Correct the name"),
        ("senszoq", "master", "fp16", "Correct the name"),
    ],
)
def test_a_setting_has_one_name(method: str, key: str, value: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=rf"setting '{key}': found no such setting.*{fix}"):
        parse(methods.get(method).config, {key: value})


@pytest.mark.parametrize(
    ("said", "weights", "eps", "learning_rate"),
    [
        ({}, "int8", 1.0, 1.0),
        ({"weights": "int4"}, "int4", 0.5, 3e-3),
        ({"perturbation_bits": "2"}, "int8", 0.5, 1.0),
        # Adapters are INT8 whatever the frozen weights are.
        ({"train": "lora"}, "int4", 1.0, 1000.0),
        ({"train": "lora", "weights": "int8", "learning_rate": "3"}, "int8", 1.0, 3.0),
    ],
)
def test_defaults_of_trained_integers_follow_their_grid(
    said: dict[str, str], weights: str, eps: float, learning_rate: float
) -> None:
    config = parse(methods.get("quzo").config, said)
    assert (config.weights, config.eps, config.learning_rate) == (weights, eps, learning_rate)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("mebp", {"lora.layers_to_transform": "all"}),
        ("prge", {"lora.layers_to_transform": "last:2", "granularity": "model"}),
        ("senszoq", {"mask": "mask"}),
    ],
)
def test_a_cache_of_rows_needs_frozen_layers(method: str, settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="no program of a layer lies below"):
        plan(method, "android-cpu", {**settings, "hidden_state_cache_mb": "100"})
    plan(
        "mebp",
        "android-cpu",
        {"lora.layers_to_transform": "last:2", "hidden_state_cache_mb": "100"},
    )
