"""Tiny models in programs of single layers: MeBP's gradients, and zeroth-order methods over the same programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.compiled import Compiler
from tests.support.engine_parity import passed
from tests.support.tiers import slow_after
from zoexport.api import Bundle
from zoexport.ir.lengths import row_lengths
from zoexport.session import Dataset, Session

pytestmark = pytest.mark.parity
ARCHITECTURES = (
    "llama_tied",
    "qwen2",
    "gemma3",
    "opt",
    "phi3",
    "gpt2",
    "falcon",
    "bloom",
    "cohere2",
)
"""The unit tier has the gradients of all of them, before they are lowered."""
ALL = {"lora__target_modules": "all-linear", "weights": "int4"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gradients_of_architectures(compiler: Compiler, name: str) -> None:
    """Every tensor of every adapter against autograd over the same dequantized weights; batches of unequal rows."""
    report = passed(compiler.bundle(name, "mebp", **ALL))
    assert report["max_relative_gradient_error"] <= 1e-4
    assert report["max_relative_loss_error"] <= 1e-4


@pytest.mark.parametrize("weights", slow_after(1, ["fp32", "int8"]))
def test_gradients_over_other_weights(compiler: Compiler, weights: str) -> None:
    passed(compiler.bundle("gemma3", "mebp", **{**ALL, "weights": weights}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 1, "gradient_accumulation_steps": 4},
        {"batch_size": 2, "gradient_accumulation_steps": 2, "loss": "choices"},
        {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1, "max_grad_norm": 0},
        {"checkpoint_every": 2, "weight_decay": 0.01},
        {
            "lora__target_modules": "attention",
            "lora__layers_to_transform": "0",
            "lora__alpha": 8,
        },
        {"max_length": 48, "batch_size": 1, "gradient_accumulation_steps": 3},
    ],
    ids=lambda settings: ",".join(settings),
)
def test_settings_of_mebp(compiler: Compiler, settings: dict[str, Any]) -> None:
    passed(compiler.bundle("gemma3", "mebp", **{**ALL, **settings}), steps=6)


@pytest.mark.parametrize(
    ("name", "settings"),
    slow_after(
        1,
        [
            ("llama_tied", {"num_queries": 3}),
            ("gemma3", {"difference": "forward", "gradient_accumulation_steps": 2}),
            ("gpt2", {"batch_size": 1, "max_length": 31}),
            ("roberta", {"loss": "choices"}),
        ],
    ),
)
def test_mezo_on_all_weights(compiler: Compiler, name: str, settings: dict[str, Any]) -> None:
    """Every parameter is a slot, a tied one also one."""
    report = passed(
        compiler.bundle(name, "mezo", train="full", learning_rate=1e-3, eps=1e-2, **settings)
    )
    assert report["max_relative_state_error"] <= 1e-6


@pytest.mark.parametrize("method", slow_after(1, ["prge", "mezo"]))
@pytest.mark.parametrize("weights", slow_after(1, ["int4", "fp32"]))
def test_zeroth_order_over_layers(compiler: Compiler, method: str, weights: str) -> None:
    bundle = compiler.bundle("qwen2", method, num_queries=2, weights=weights)
    programs = json.loads((bundle / "manifest.json").read_text())["programs"]
    assert {program["family"] for program in programs} == {"embedding", "layer.0", "head"}
    passed(bundle, steps=10)


def test_split_and_whole_programs_take_the_same_steps(compiler: Compiler) -> None:
    """Same noise, same batches: what differs is where floats are rounded."""
    losses = []
    for granularity in ("model", "layer"):
        with (
            Session.open(
                compiler.bundle("llama", "prge", "ios-mlx", granularity=granularity)
            ) as session,
            _data() as data,
        ):
            losses.append([session.step(data, [0, 1, 2]).losses for _ in range(5)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_lengths_are_chosen_by_the_longest_row(compiler: Compiler) -> None:
    bundle = compiler.bundle(
        "gemma3",
        "mebp",
        **{**ALL, "max_length": 48, "batch_size": 1, "gradient_accumulation_steps": 3},
    )
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["lengths"] == row_lengths(48) == [32, 48]
    assert {program.get("length") for program in manifest["programs"]} == {32, 48, None}


def test_one_sgd_step_is_minus_lr_times_the_gradient(compiler: Compiler, tmp_path: Path) -> None:
    """As the exported PEFT adapter has it."""
    bundle = compiler.bundle("llama", "mebp", **{**ALL, "optimizer": "sgd", "max_grad_norm": 0})
    before = _exported(bundle, None, tmp_path / "before")
    with Session.open(bundle) as session, _data() as data:
        session.attach(tmp_path / "state")
        session.configure(learning_rate=0.5)
        session.step(data, [0, 1, 2])
        gradients = {
            slot.name: np.frombuffer(
                session.read_slot(slot.name, gradient=True), np.float32
            ).reshape(slot.shape)
            for slot in session.slots()
        }
        session.save()
    after = _exported(bundle, tmp_path / "state", tmp_path / "after")
    moved = 0
    for name, gradient in gradients.items():
        half, _, module = name.partition(".")
        key = f"base_model.model.{module}.{half}.weight"
        # PEFT keeps both matrices transposed.
        np.testing.assert_allclose(
            after[key].T, before[key].T - np.float32(0.5) * gradient, rtol=1e-6, atol=1e-8
        )
        moved += bool(gradient.any())
    assert moved == len(gradients) // 2  # B is zero at first, so that A does not move


def _data() -> Dataset:
    data = Dataset()
    for number, length in enumerate((5, 24, 11)):
        tokens = [(7 * number + 3 * place) % 300 for place in range(length + 1)]
        data.add([(tokens[:-1], tokens[1:])], 0)
    return data


def _exported(bundle: Path, state: Path | None, folder: Path) -> dict[str, np.ndarray]:
    Bundle.open(bundle).export_adapter(folder, state=state, format="peft")
    return load_file(folder / "adapter_model.safetensors")
