"""QuZO over tiny models: the session's integers and losses against the reference's, and what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.support.compiled import Compiler, compile_tiny
from tests.support.engine_parity import passed, trained
from tests.support.tiers import slow_after
from tests.support.tiny_models import fixed_tokens, save_tiny
from zoexport.api import Bundle
from zoexport.core import int4
from zoexport.core.errors import ConfigError, ModelError, StateError
from zoexport.session import Dataset, Session

pytestmark = pytest.mark.parity
ARCHITECTURES = ("llama_tied", "qwen2", "gemma3", "opt", "phi3", "gpt2", "olmo2", "cohere2")
INT4 = {"weights": "int4", "num_queries": 2}
INT8 = {
    "weights": "int8",
    "num_queries": 2,
    "perturbation_bits": 4,
    "eps": 1.5,
    "learning_rate": 0.1,
}


def compare(bundle: Path, steps: int) -> dict[str, Any]:
    """Parity without progress; it passes, with equal integers."""
    report = passed(bundle, steps)
    assert report["max_relative_state_error"] == 0
    return report


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("settings", [INT4, INT8], ids=["int4", "int8"])
def test_five_steps(compiler: Compiler, name: str, settings: dict[str, Any]) -> None:
    report = compare(compiler.bundle(name, "quzo", **settings), 5)
    assert report["max_relative_loss_error"] <= 1e-4


@pytest.mark.parametrize(
    "settings",
    [pytest.param(INT4, id="int4"), pytest.param(INT8, id="int8", marks=pytest.mark.slow)],
)
def test_integers_are_equal_after_a_hundred_steps(
    compiler: Compiler, settings: dict[str, Any]
) -> None:
    compare(compiler.bundle("llama_tied", "quzo", **settings), 100)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"estimator": "q-rge1"},
        {"update": "summed", "weights": "int8"},
        {"perturbation_bits": 2, "eps": 0.5, "num_queries": 1},
        {"perturbation_bits": 8, "eps": 30, "weights": "int8"},
        {"loss": "choices", "batch_size": 2},
        {"gradient_accumulation_steps": 3, "batch_size": 1},
        {"group_size": 64},
        {"activation_bits": 8},
        {"activation_bits": 8, "weights": "int8", "outliers": 0.01},
        {"activation_bits": 8, "datatypes": "search"},
        {"train": "lora"},
        {
            "train": "lora",
            "weights": "int8",
            "lora__target_modules": "all-linear",
            "activation_bits": 8,
        },
    ],
    ids=lambda settings: ",".join(settings),
)
def test_settings(compiler: Compiler, settings: dict[str, Any]) -> None:
    compare(compiler.bundle("gemma3", "quzo", **{**INT4, **settings}), 4)


@pytest.mark.parametrize(
    ("name", "settings"),
    slow_after(
        3,
        [
            ("llama_tied", {}),
            ("gemma3", {**INT8, "estimator": "q-rge1"}),
            ("llama_tied", {"update": "summed", "num_queries": 3}),
            ("gpt2", {"train": "lora"}),
            ("qwen2", {"activation_bits": 8, "outliers": 0.01, "group_size": 64}),
        ],
    ),
)
def test_steps_in_mlx(compiler: Compiler, name: str, settings: dict[str, Any]) -> None:
    """MLX draws the perturbations itself, and the session moves the integers."""
    compare(compiler.bundle(name, "quzo", "ios-mlx", **{**INT4, **settings}), 4)


def exported(bundle: Path, state: Path | None, output: Path) -> dict[str, torch.Tensor]:
    """The tensors of the default format."""
    report = Bundle.open(bundle).export_adapter(output, state=state).as_dict()
    assert report["format"] == "quantized"
    return load_file(output / "quantized_model.safetensors")


@pytest.mark.parametrize(
    "settings",
    [
        {"weights": "int4", "eps": 0.5, "learning_rate": 1},
        {"weights": "int8", "eps": 3, "learning_rate": 30},
        {"weights": "int8", "train": "lora"},  # at their default rate
    ],
    ids=["int4", "int8", "adapters"],
)
def test_the_loss_falls_by_half_in_two_hundred_steps(
    compiler: Compiler, settings: dict[str, Any]
) -> None:
    """The loss is that of a choice between two tokens, after two prompts."""
    given = {"num_queries": 8, "batch_size": 2, "max_length": 16, "loss": "choices", **settings}
    bundle = compiler.bundle("llama_tied", "quzo", **given)
    with Session.open(bundle) as session, Dataset() as dataset:
        for number in range(2):
            row = [5 + number, 9, 30 + number, 12]
            dataset.add([(row, [-100, -100, -100, label]) for label in (7, 8)], 0)
        losses = [session.step(dataset, [0, 1]).loss for _ in range(200)]
    assert np.mean(losses[-10:]) <= 0.5 * np.mean(losses[:3])


@pytest.mark.parametrize("settings", [INT4, INT8], ids=["int4", "int8"])
def test_the_state_holds_integers(
    compiler: Compiler, tmp_path: Path, settings: dict[str, Any]
) -> None:
    bundle = compiler.bundle("llama_tied", "quzo", **settings)
    slots = [slot for slot in Bundle.open(bundle).manifest["state"] if slot["role"] == "trainable"]
    dtype = {"int4": "uint8", "int8": "int8"}[settings["weights"]]
    assert {slot["dtype"] for slot in slots} == {dtype}
    model = AutoModelForCausalLM.from_pretrained(compiler.model("llama_tied"))
    weights = {f"{slot['module']}.weight" for slot in slots}
    elements = sum(model.get_parameter(name).numel() for name in weights)
    packed = elements // 2 if dtype == "uint8" else elements
    state = trained(bundle, tmp_path / "state", 2)
    snapshots = [load_file(path) for path in state.glob("snapshot-*.safetensors")]
    for tensors in snapshots:
        assert {str(tensor.dtype) for tensor in tensors.values()} == {f"torch.{dtype}"}
        assert sum(tensor.nbytes for tensor in tensors.values()) == packed
    # No weight is there once more in another form.
    initial = load_file(bundle / "adapter.safetensors")
    assert sum(t.nbytes for name, t in initial.items() if name.endswith(".codes")) == packed
    frozen = load_file(bundle / "weights.safetensors")
    assert not any(name.removesuffix(".codes") in weights for name in frozen)


@pytest.mark.parametrize("name", ["llama_tied", "gpt2"])
def test_a_dequantized_model_has_the_trained_weights(
    compiler: Compiler, tmp_path: Path, name: str
) -> None:
    bundle = compiler.bundle(name, "quzo", **INT8)
    state = trained(bundle, tmp_path / "state", 5)
    tensors = exported(bundle, state, tmp_path / "out")
    before = exported(bundle, None, tmp_path / "before")
    Bundle.open(bundle).export_adapter(tmp_path / "hf", state=state, format="hf")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    changed = 0
    for slot in Bundle.open(bundle).manifest["state"]:
        if slot["role"] == "trainable":
            weight = f"{slot['module']}.weight"
            codes, scales = tensors[f"{weight}.codes"], tensors[f"{weight}.scales"]
            theirs = merged.get_parameter(weight).detach()
            ours = int4.dequantize_int8(codes, scales)
            # GPT-2's layers keep their weights transposed.
            assert torch.equal(theirs.T if name == "gpt2" else theirs, ours)
            changed += int((codes != before[f"{weight}.codes"]).sum())
    assert changed > 0
    # Embedding, norms and head are the original ones, so its loss is close to the session's.
    tokens = fixed_tokens(2, 20)
    with Session.open(bundle) as session, Dataset() as dataset:
        session.attach(state, read_only=True)
        for row in tokens.tolist():
            dataset.add([(row[:-1], row[1:])], 0)
        ours_loss = session.evaluate(dataset).loss
    with torch.no_grad():
        loss = float(merged(input_ids=tokens, labels=tokens).loss)
    assert abs(loss - ours_loss) <= 2e-2 * ours_loss


def test_what_left_comes_back(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama_tied", "quzo", **INT4)
    first = exported(bundle, trained(bundle, tmp_path / "state", 5), tmp_path / "out")
    again = tmp_path / "again"
    Bundle.open(bundle).import_adapter(tmp_path / "out", state=again)
    second = exported(bundle, again, tmp_path / "out-again")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = compiler.bundle("llama", "quzo", **INT4)
    with pytest.raises(StateError, match="weights of the model"):
        Bundle.open(other).import_adapter(tmp_path / "out", state=tmp_path / "s")
    with pytest.raises(ConfigError, match="a whole model"):
        Bundle.open(bundle).import_adapter(tmp_path / "out", format="hf", state=tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight_bits": 8}, "Did you mean 'weights'"),
        ({"weights": "fp32"}, "fp32"),
        ({"weights": "int4", "perturbation_bits": 3}, "perturbation_bits"),
        ({"weights": "int4", "perturbation_bits": 2, "eps": 1}, "at most 0.5"),
        ({"weights": "int4", "eps": "nan"}, "eps"),
        ({"weights": "int4", "group_size": 48}, "multiple of 32"),
        ({"weights": "int4", "outliers": 0.01}, "activation_bits=8"),
        ({"weights": "int4", "datatypes": "search"}, "activation_bits=8"),
        ({"weights": "int4", "activation_bits": 8, "outliers": 0.6}, "below 0.5"),
        ({"weights": "int4", "activations": "int8"}, "activation_bits=8"),
    ],
    ids=lambda value: str(value),
)
def test_what_cannot_be_compiled(
    compiler: Compiler, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        compiler.bundle("llama", "quzo", **settings)


@pytest.mark.parametrize("target", ["android-npu", "android-gpu", "ios-coreml"])
def test_targets_without_such_products_say_so(compiler: Compiler, target: str) -> None:
    with pytest.raises(ConfigError, match=f"target {target} has no product that perturbs"):
        compiler.bundle("llama", "quzo", target, weights="int4")


@pytest.mark.parametrize("weights", ["int4", "int8"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_model_with_a_weight_that_is_no_number_is_refused(
    tmp_path: Path, weights: str, bad: float
) -> None:
    model = save_tiny("llama", tmp_path / "model")
    file = model / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = bad
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"NaN or infinite .*layers\.1\.mlp\.up_proj"):
        compile_tiny(model, tmp_path / "bundle", "quzo", weights=weights)
    assert not list(tmp_path.glob("bundle*"))


def test_scales_that_are_no_numbers_are_refused(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama_tied", "quzo", **INT4)
    folder = tmp_path / "out"
    tensors = exported(bundle, trained(bundle, tmp_path / "state", 1), folder)
    name = next(name for name in tensors if name.endswith(".scales"))
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, folder / "quantized_model.safetensors")
    with pytest.raises(StateError, match=f"{name.removesuffix('.scales')}: found .*other scales"):
        Bundle.open(bundle).import_adapter(folder, state=tmp_path / "new")
    assert not (tmp_path / "new").exists()
