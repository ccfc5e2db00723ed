"""Ranks and scales by module: PEFT's matching, and patterns whose order does not matter."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig
from peft.utils.other import get_pattern_key

from zoexport.core.errors import ConfigError
from zoexport.core.lora_scaling import LoraScaling, first_match, patterns_of

MODULES = [
    f"model.layers.{layer}.{name}"
    for layer in (0, 1, 10)
    for name in ("self_attn.q_proj", "self_attn.v_proj", "mlp.q_proj")
]
PATTERNS = [
    "q_proj",
    "self_attn.q_proj",
    "proj",
    "layers.1.*",
    r"layers\.1\..*",
    r"^model\.layers\.0\..*",
    "^layers.*",
    "layers.0.self_attn.q_proj",
    "mlp.q_proj|self_attn.v_proj",
    "model.layers.10.mlp.q_proj",
    ".*",
]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(PATTERNS), st.integers(1, 99), max_size=5))
def test_the_first_pattern_counts_as_in_peft(patterns: dict[str, int]) -> None:
    for module in MODULES:
        key = get_pattern_key(patterns.keys(), module)
        assert first_match(patterns, module, 7) == patterns.get(key, 7)


def test_scales_are_those_of_peft() -> None:
    import torch
    from peft import get_peft_model

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.v_proj = torch.nn.Linear(9, 7), torch.nn.Linear(9, 5)

    for rslora in (False, True):
        config = LoraConfig(
            r=3,
            lora_alpha=5,
            target_modules=["q_proj", "v_proj"],
            use_rslora=rslora,
            rank_pattern={"v_proj": 2},
            alpha_pattern={"^q_proj": 7},
        )
        scaling = LoraScaling(3, 5.0, rslora, {"v_proj": 2}, {"^q_proj": 7.0})
        theirs = get_peft_model(Model(), config).base_model.model
        for name in ("q_proj", "v_proj"):
            layer = getattr(theirs, name)
            assert layer.r["default"] == scaling.rank_of(name)
            assert layer.scaling["default"] == scaling.scale_of(name)
            plain = scaling.plain_alpha_of(name) / scaling.rank_of(name)
            assert math.isclose(plain, scaling.scale_of(name), rel_tol=1e-15)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([4, 4, 4, 2, 16]), min_size=len(MODULES), max_size=len(MODULES)))
def test_written_patterns_mean_the_same_in_any_order(values: list[int]) -> None:
    wanted = dict(zip(MODULES, values, strict=True))
    written = patterns_of(wanted, 4)
    for order in (written, dict(sorted(written.items())), dict(reversed(written.items()))):
        again = json.loads(json.dumps(order))
        for module, value in wanted.items():
            assert again.get(get_pattern_key(again.keys(), module), 4) == value


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (
            {"rank_pattern": {"o_proj": 4}},
            r"lora\.rank_pattern.*names no adapted module.*Did you mean",
        ),
        ({"alpha_pattern": {"proj": 4.0}}, r"lora\.alpha_pattern.*'proj', which names no"),
        ({"rank_pattern": {"q_proj(": 4}}, "no regular expression"),
    ],
)
def test_patterns_that_name_nothing(patterns: dict[str, dict[str, float]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoraScaling(4, 4.0, **patterns).check(MODULES)  # type: ignore[arg-type]
