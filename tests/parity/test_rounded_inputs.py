"""``activations=int8`` over int4 weights: our own products, on both sides of parity."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.engine_parity import passed
from tests.support.tiers import slow_after
from zoexport.api import Bundle
from zoexport.compiler.plan import plan
from zoexport.core.errors import ConfigError

pytestmark = pytest.mark.parity
ROUNDED = {"activations": "int8", "weights": "int4"}
OPERATOR = "zoexport::rounded_linear.out"


@pytest.mark.parametrize(
    ("name", "method", "settings"),
    slow_after(
        2,
        [
            ("llama_tied", "prge", {"lora__target_modules": "all-linear"}),
            ("gemma3", "senszoq", {}),
            ("qwen2", "mezo", {"difference": "forward", "max_length": 45}),
            ("gpt2", "spzo", {"perturbations": "2,2"}),
            ("roberta", "fzoo", {"loss": "choices"}),
            ("phi3", "mezo", {"group_size": 64}),
            ("qwen2", "prge", {"lora__target_modules": "all-linear"}),
            ("falcon", "mezo", {"batch_size": 1}),
        ],
    ),
)
def test_parity(compiler: Compiler, name: str, method: str, settings: dict[str, Any]) -> None:
    bundle = compiler.bundle(name, method, **{**ROUNDED, **settings})
    assert OPERATOR in Bundle.open(bundle).manifest["required_ops"]
    passed(bundle, 4)


def test_layers_that_read_the_same_rows_are_one_call(compiler: Compiler) -> None:
    """Queries, keys and values; the gate and what it gates; alone are what follows attention and the gate."""
    bundle = compiler.bundle("llama_tied", "prge", **ROUNDED)
    together = {f"zoexport::rounded_linears_{count}.out" for count in (2, 3)}
    assert {OPERATOR, *together} <= set(Bundle.open(bundle).manifest["required_ops"])


def test_rounding_is_what_differs_from_fp32(compiler: Compiler, monkeypatch: Any) -> None:
    """The check can fail: against a reference that does not round, losses are several times as far off."""
    bundle = compiler.bundle("llama_tied", "prge", **ROUNDED)
    rounded = Bundle.open(bundle).parity(steps=2).as_dict()
    monkeypatch.setattr("zoexport.methods.reference.quantized.rounded_rows", lambda x: x)
    plain = Bundle.open(bundle).parity(steps=2).as_dict()
    key = "max_relative_loss_error"
    assert plain[key] > 3 * rounded[key]


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("mebp", {}, "no gradient goes through inputs that are rounded"),
        (
            "prge",
            {"compute": "bf16"},
            "compute=bf16 rounds the same inputs",
        ),
        ("prge", {"weights": "fp32"}, "frozen int4 and int8 weights"),
        ("mezo", {"train": "full"}, "frozen int4 and int8 weights"),
    ],
)
def test_what_does_not_round_refuses_it(method: str, settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(method, "host", {**ROUNDED, **settings})
