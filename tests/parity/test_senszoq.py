"""SensZOQ over tiny models: the session's steps against the reference's, and what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from tests.support.compiled import Compiler
from tests.support.engine_parity import passed, trained
from tests.support.masks import write_random_mask
from tests.support.tiers import slow_after
from tests.support.tiny_models import fixed_tokens
from zoexport import models
from zoexport.api import Bundle
from zoexport.core.errors import ConfigError, StateError
from zoexport.session import Dataset, Session
from zoexport.trained.sparse import places_of

pytestmark = pytest.mark.parity
ARCHITECTURES = ("llama_tied", "qwen2", "gemma3", "opt", "phi3", "gpt2", "olmo2", "cohere2")
INT4 = {"weights": "int4", "learning_rate": 1e-3, "eps": 1e-2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "queries"),
    slow_after(
        3, [("gpt2", 1), ("llama_tied", 1), *((name, 4) for name in reversed(ARCHITECTURES))]
    ),
)
def test_twenty_steps_over_int4(compiler: Compiler, name: str, queries: int) -> None:
    report = passed(compiler.bundle(name, "senszoq", num_queries=queries, **INT4), 20)
    assert report["max_relative_loss_error"] <= 1e-4


@pytest.mark.parametrize("name", slow_after(1, ["gemma3", "llama_tied"]))
def test_twenty_steps_in_mlx(compiler: Compiler, name: str) -> None:
    """Noise is an input, and the sparse product a gather and a scatter."""
    report = passed(compiler.bundle(name, "senszoq", "ios-mlx", num_queries=2, **INT4), 20)
    assert report["max_relative_loss_error"] <= 1e-4


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama_tied", {"compute": "fp32"}),
        pytest.param("gpt2", {}, marks=pytest.mark.slow),
    ],
)
def test_steps_in_core_ml(compiler: Compiler, name: str, settings: dict[str, Any]) -> None:
    """Noise is an input, and the places are constants."""
    report = passed(
        compiler.bundle(name, "senszoq", "ios-coreml", num_queries=2, **INT4, **settings), steps=6
    )
    assert report["max_relative_loss_error"] <= (1e-4 if settings else 5e-3)
    assert report["max_relative_state_error"] == 0


@pytest.mark.parametrize(
    "settings",
    slow_after(
        1,
        [
            {"weights": "fp32"},
            {"weights": "int8", "loss": "choices", "batch_size": 2},
            {"gradient_accumulation_steps": 3, "batch_size": 1, "weights": "int4"},
        ],
    ),
    ids=lambda settings: ",".join(settings),
)
def test_settings(compiler: Compiler, settings: dict[str, Any]) -> None:
    passed(
        compiler.bundle("gemma3", "senszoq", num_queries=2, learning_rate=1e-3, **settings), steps=6
    )


def test_the_state_is_small(compiler: Compiler, tmp_path: Path) -> None:
    """Two copies of fp16 in memory and an index of 32 bits: at most 10 bytes a chosen weight."""
    bundle = compiler.bundle("llama_tied", "senszoq", num_queries=2, **INT4)
    manifest = Bundle.open(bundle).manifest
    (slot,) = manifest["state"]
    count = sum(len(places) for places in places_of(Bundle.open(bundle)).values())
    assert (slot["dtype"], slot["shape"]) == ("float16", [count])
    values = load_file(bundle / "adapter.safetensors")["sparse.values"]
    with safe_open(bundle / "weights.safetensors", framework="np") as file:
        places = file.get_tensor("sparse.places")
    assert 2 * values.nbytes + places.nbytes == 8 * count
    state = trained(bundle, tmp_path / "state", 2)
    (snapshot,) = state.glob("snapshot-*.safetensors")
    assert load_file(snapshot)["sparse.values"].dtype == np.float16


def test_dense_weights_are_zero_where_weights_are_chosen(compiler: Compiler) -> None:
    bundle = compiler.bundle("llama_tied", "senszoq", num_queries=2, learning_rate=1e-3)
    dense = load_file(bundle / "weights.safetensors")
    loaded = models.load(models.resolve(str(compiler.model("llama_tied"))))
    values = load_file(bundle / "adapter.safetensors")["sparse.values"]
    end = 0
    for name, places in places_of(Bundle.open(bundle)).items():
        original = loaded.model.get_parameter(name).detach().numpy().reshape(-1)
        begin, end = end, end + len(places)
        assert not dense[name].reshape(-1)[places.numpy()].any()
        np.testing.assert_array_equal(
            values[begin:end], original[places.numpy()].astype(np.float16)
        )
        kept = np.ones(original.size, bool)
        kept[places.numpy()] = False
        np.testing.assert_array_equal(dense[name].reshape(-1)[kept], original[kept])
    assert end == len(values)


@pytest.mark.parametrize("name", ["llama_tied", "gpt2"])
def test_a_merged_model_has_the_trained_weights(
    compiler: Compiler, tmp_path: Path, name: str
) -> None:
    """Over fp32 it says what the session says."""
    bundle = compiler.bundle(name, "senszoq", num_queries=2, learning_rate=1e-2)
    state = trained(bundle, tmp_path / "state", 5)
    Bundle.open(bundle).export_adapter(tmp_path / "hf", state=state, format="hf")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    original = AutoModelForCausalLM.from_pretrained(compiler.model(name)).eval()
    tokens = fixed_tokens(2, 20)
    with Session.open(bundle) as session, Dataset() as dataset:
        session.attach(state, read_only=True)
        for row in tokens.tolist():
            dataset.add([(row[:-1], row[1:])], 0)
        ours = session.evaluate(dataset).loss
    losses = []
    for model in (merged, original):
        with torch.no_grad():
            losses.append(float(model(input_ids=tokens, labels=tokens).loss))
    assert abs(losses[0] - ours) <= 1e-6 * ours
    assert abs(losses[0] - losses[1]) > 5e-5 * ours


def test_what_left_comes_back(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama_tied", "senszoq", num_queries=2, **INT4)
    state = trained(bundle, tmp_path / "state", 5)
    out = tmp_path / "out"
    assert Bundle.open(bundle).export_adapter(out, state=state).as_dict()["format"] == "sparse"
    Bundle.open(bundle).import_adapter(out, state=tmp_path / "again")
    again = tmp_path / "out-again"
    Bundle.open(bundle).export_adapter(again, state=tmp_path / "again")
    first, second = (load_file(folder / "sparse_model.safetensors") for folder in (out, again))
    assert first.keys() == second.keys()
    changed = 0
    for name, tensor in first.items():
        if not name.endswith(".delta"):
            np.testing.assert_array_equal(tensor, second[name])
        else:
            changed += int(np.count_nonzero(tensor))
    assert changed


def test_what_core_ml_trained_leaves_too(compiler: Compiler, tmp_path: Path) -> None:
    """Programs have the places inside, and the weights' file of the bundle has nothing else."""
    bundle = compiler.bundle("llama_tied", "senszoq", "ios-coreml", num_queries=2, **INT4)
    other = compiler.bundle("llama_tied", "senszoq", num_queries=2, **INT4)
    assert [*load_file(bundle / "weights.safetensors")] == ["sparse.places"]
    files = []
    for number, one in enumerate((bundle, other)):
        output = tmp_path / str(number)
        Bundle.open(one).export_adapter(output, format="sparse")
        files.append((output / "sparse_model.safetensors").read_bytes())
    assert files[0] == files[1]


def test_what_cannot_come_in(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama_tied", "senszoq", num_queries=2, **INT4)
    out = tmp_path / "out"
    Bundle.open(bundle).export_adapter(out, format="sparse")
    other = compiler.bundle("llama", "senszoq", num_queries=2, **INT4)
    with pytest.raises(StateError, match="weights of the model"):
        Bundle.open(other).import_adapter(out, format="sparse", state=tmp_path / "s")
    with pytest.raises(ConfigError, match="a whole model"):
        Bundle.open(bundle).import_adapter(out, format="hf", state=tmp_path / "s")
    with pytest.raises(ConfigError, match="senszoq, which trains chosen weights"):
        Bundle.open(bundle).export_adapter(tmp_path / "p", format="peft")
    (out / "sparse_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(StateError, match="no readable file"):
        Bundle.open(bundle).import_adapter(out, format="sparse", state=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_mask_of_another_model(compiler: Compiler, tmp_path: Path) -> None:
    mask = write_random_mask(compiler.model("llama"), tmp_path / "mask.safetensors")
    with pytest.raises(ConfigError, match=r"a mask of llama with SHA-256.*one of llama_tied"):
        compiler.bundle("llama_tied", "senszoq", mask=mask)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mask": "nowhere.safetensors"}, "mask nowhere.safetensors.*zoexport sensitivity"),
        ({"activations": "int8"}, "activations"),
    ],
    ids=lambda value: str(value),
)
def test_what_cannot_be_compiled(
    compiler: Compiler, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        compiler.bundle("llama", "senszoq", **settings)


@pytest.mark.parametrize("target", ["android-npu", "android-gpu"])
def test_targets_without_sparse_products_say_so(compiler: Compiler, target: str) -> None:
    with pytest.raises(ConfigError, match=f"target {target} has no sparse product"):
        compiler.bundle("llama", "senszoq", target)
