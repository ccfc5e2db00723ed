"""``compute=bf16``: layers multiply numbers rounded to bfloat16, on both sides of parity; what cannot is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.engine_parity import passed
from tests.support.qnn import needs_qnn
from tests.support.tiers import slow_after
from zoexport.api import Bundle
from zoexport.compiler.plan import plan
from zoexport.core.errors import ConfigError

pytestmark = pytest.mark.parity
BF16 = {"compute": "bf16", "weights": "int4"}


@pytest.mark.parametrize(
    ("name", "settings"),
    slow_after(
        2,
        [
            ("gemma3", {"weights": "int8", "batch_size": 1}),
            ("gpt2", {"lora__dropout": 0.2}),
            ("llama_tied", {"checkpoint_every": 2}),
            ("qwen2", {"lora__target_modules": "attention", "activation_cache_mb": 0}),
            ("roberta", {"loss": "choices"}),
            ("phi3", {"max_length": 45}),
            ("bloom", {}),
        ],
    ),
)
def test_gradients(compiler: Compiler, name: str, settings: dict[str, Any]) -> None:
    """Rounded: further from autograd in float64 than float32 is, and a tenth of what is allowed of thirty layers."""
    given = {"lora__target_modules": "all-linear", **BF16, **settings}
    report = passed(compiler.bundle(name, "mebp", **given), 4)
    assert 1e-5 < report["max_relative_gradient_error"] <= 1e-2
    assert report["max_relative_loss_error"] <= 1e-4


@pytest.mark.parametrize(
    ("method", "settings"),
    slow_after(
        1,
        [
            ("senszoq", {}),
            ("prge", {"weights": "int8"}),
            ("mezo", {"difference": "forward"}),
            ("spzo", {"perturbations": "2,2"}),
        ],
    ),
)
def test_differences(compiler: Compiler, method: str, settings: dict[str, Any]) -> None:
    bundle = compiler.bundle("llama_tied", method, **{**BF16, **settings})
    passed(bundle, 4)


def test_rounding_is_what_differs_from_fp32(compiler: Compiler, monkeypatch: Any) -> None:
    """The check can fail: against a reference that does not round, gradients are several times as far off."""
    bundle = compiler.bundle("gemma3", "mebp", **BF16, lora__target_modules="all-linear")
    rounded = Bundle.open(bundle).parity(steps=2).as_dict()
    monkeypatch.setattr("zoexport.methods.reference.quantized._multiply_bf16", lambda *_: None)
    plain = Bundle.open(bundle).parity(steps=2).as_dict()
    key = "max_relative_gradient_error"
    assert plain[key] > 2 * rounded[key]


@pytest.mark.parametrize(
    ("method", "target", "settings", "said"),
    [
        ("mebp", "host", {"weights": "fp32"}, "setting compute=bf16"),
        ("mezo", "android-cpu", {"train": "full", "weights": "fp32"}, "setting compute=bf16"),
        ("quzo", "host", {}, "setting compute=bf16"),
        ("mebp", "android-gpu", {}, "compute=fp32 or fp16"),
        ("mebp", "ios-mlx", {}, "compute=fp32"),
        ("mebp", "ios-coreml", {}, "compute=fp32 or fp16"),
        pytest.param("mebp", "android-npu", {}, "compute=bf16", marks=needs_qnn),
    ],
)
def test_what_does_not_round_refuses_it(
    method: str, target: str, settings: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(method, target, {**BF16, **settings})
