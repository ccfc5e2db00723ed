"""SPZO over tiny models: the session's steps against the reference's, what they cost, and what comes out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from tests.support.compiled import SEQ, Compiler
from tests.support.engine_parity import passed, take_steps
from tests.support.tiers import slow_after
from tests.support.tiny_models import VOCAB_SIZE, fixed_tokens, tiny
from zoexport.api import Bundle
from zoexport.core import manifest as manifests
from zoexport.core.errors import BundleError, ConfigError, StateError
from zoexport.session import Dataset, Session
from zoexport.tools.bench.matrix import Shape
from zoexport.tools.bench.runner import run_steps
from zoexport.tools.bench.workload import examples_file
from zoexport.tools.plan import plan_training

pytestmark = pytest.mark.parity
FULL = {"train": "full", "learning_rate": 1e-3, "eps": 1e-2}
PERTURBATIONS = ("1,1", "2,4")


def compare(bundle: Path, steps: int) -> None:
    report = passed(bundle, steps)
    assert report["bounds"]["loss"] == 1e-4 and report["bounds"]["state"] == 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("perturbations", PERTURBATIONS)
@pytest.mark.parametrize("split", ["head", "layer:1"])
@pytest.mark.parametrize("name", ["llama_tied", "opt"])
def test_all_weights(compiler: Compiler, name: str, split: str, perturbations: str) -> None:
    settings = {"split": split, "perturbations": perturbations, **FULL}
    compare(compiler.bundle(name, "spzo", **settings), steps=8)


@pytest.mark.parametrize("perturbations", PERTURBATIONS)
@pytest.mark.parametrize("name", slow_after(1, ["llama_tied", "gemma3", "qwen2", "gpt2"]))
def test_adapters_by_layer(compiler: Compiler, name: str, perturbations: str) -> None:
    settings = {"split": "layer:1", "perturbations": perturbations, "weights": "int4"}
    compare(compiler.bundle(name, "spzo", **settings), steps=8)


@pytest.mark.parametrize("name", slow_after(1, ["llama", "gemma3", "phi3", "gpt2"]))
def test_all_weights_of_other_architectures(compiler: Compiler, name: str) -> None:
    compare(compiler.bundle(name, "spzo", perturbations="1,2", **FULL), steps=4)


@pytest.mark.parametrize(
    "settings",
    [{"split": "last:1", "weights": "int4"}, {"split": "head", **FULL}],
    ids=["lora", "full"],
)
def test_in_mlx(compiler: Compiler, settings: dict[str, Any]) -> None:
    compare(
        compiler.bundle("llama_tied", "spzo", "ios-mlx", perturbations="1,2", **settings), steps=4
    )


def test_choices_and_several_batches(compiler: Compiler) -> None:
    settings = {
        "loss": "choices",
        "choices": "mean",
        "gradient_accumulation_steps": 3,
        "batch_size": 2,
    }
    settings |= {"perturbations": "2,1"}
    compare(compiler.bundle("qwen2", "spzo", weights="int8", **settings), steps=4)


def test_gradients_are_those_of_the_losses(compiler: Compiler) -> None:
    """Scalars a step: P1 (1 + 2 P2), the first block's from means of the second's losses."""
    first, second, eps = 2, 4, 1e-2
    bundle = compiler.bundle("llama_tied", "spzo", split="head", perturbations="2,4", **FULL)
    with Session.open(bundle) as session:
        (step,) = take_steps(session, bundle, 1)
        assert session.info.num_queries == first * (1 + 2 * second) == len(step.gradients)
    losses = np.array(step.losses).reshape(first, 2, second, 2)
    early = (losses[:, 0].mean((1, 2)) - losses[:, 1].mean((1, 2))) / (2 * eps)
    late = (losses[..., 0] - losses[..., 1]).ravel() / (2 * eps)
    assert np.allclose(step.gradients, np.concatenate([early, late]), rtol=1e-5)
    assert len(set(step.losses)) == 4 * first * second, "some evaluations were the same one"


def test_the_first_block_runs_once_for_each_sign(compiler: Compiler, tmp_path: Path) -> None:
    first, second = 2, 4
    bundle = compiler.bundle("llama_tied", "spzo", split="layer:1", perturbations="2,4", **FULL)
    embedding, layer, other, head = (
        stage["forward"] for stage in json.loads((bundle / "manifest.json").read_text())["stages"]
    )
    examples = examples_file(tmp_path, Shape(SEQ, 3, 1), VOCAB_SIZE)
    calls: dict[str, float] = {}
    for name, count in run_steps(bundle, examples, threads=1, steps=1, warmup=0).calls.items():
        family = name.partition("@")[0]
        calls[family] = calls.get(family, 0) + count
    assert layer == other, "layers of one shape are one program"
    assert calls[embedding] == 2 * first
    assert calls[layer] == 2 * first + 4 * first * second
    assert calls[head] > 0 and calls[head] % (4 * first * second) == 0


@pytest.mark.parametrize("split", ["head", "layer:1"])
def test_operations_are_the_papers(compiler: Compiler, split: str) -> None:
    """Equation 9: 2 P1 (F1 + 2 P2 F2), with F1 and F2 of the Hugging Face model's own blocks."""
    first, second, rows = 2, 4, 2
    model = tiny("llama_tied")
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(input_ids=fixed_tokens(rows, SEQ), use_cache=False)
    counts = {name: sum(found.values()) for name, found in counter.get_flop_counts().items()}
    whole = counts["Global"]
    prefix = type(model).__name__
    if split == "head":
        late = counts[f"{prefix}.lm_head"]
    else:
        late = counts[f"{prefix}.lm_head"] + counts[f"{prefix}.model.layers.1"]
    # The model's own attention multiplies pairs that the mask hides.
    config = model.config
    hidden = config.num_attention_heads * SEQ * (SEQ - 1) // 2 * 2 * 2 * config.head_dim * rows
    whole -= config.num_hidden_layers * hidden
    late -= 0 if split == "head" else hidden
    settings = {"max_length": SEQ, "batch_size": rows, "split": split, "perturbations": "2,4"}
    planned = plan_training(
        str(compiler.model("llama_tied")),
        method="spzo",
        target="host",
        settings={**{key: str(value) for key, value in settings.items()}, "train": "full"},
        progress=lambda *_: None,
    )
    expected = 2 * first * ((whole - late) + 2 * second * late)
    assert planned["flops_per_step"] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"split": "head"}, "nothing to train after it"),
        ({"split": "layer:1", "lora__layers_to_transform": "last:1"}, "nothing to train before it"),
        ({"split": "layer:2", **FULL}, "a model of 2 layers"),
        ({"split": "last:2", **FULL}, "a model of 2 layers"),
        ({"split": "middle"}, "no place in a model"),
        ({"perturbations": "0,4"}, "not two numbers"),
        ({"perturbations": "4"}, "not two numbers"),
        ({"weights": "int4", **FULL}, "integers cannot follow"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    compiler: Compiler, settings: dict[str, Any], found: str
) -> None:
    with pytest.raises(ConfigError, match=found):
        compiler.bundle("llama_tied", "spzo", **settings)


def test_the_npu_has_no_products_of_weights_that_are_trained(compiler: Compiler) -> None:
    with pytest.raises(ConfigError, match="no products of two inputs"):
        compiler.bundle("llama_tied", "spzo", "android-npu", **FULL)


def test_trained_weights_leave_as_a_model(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama_tied", "spzo", split="head", perturbations="1,1", **FULL)
    with Session.open(bundle) as session:
        session.attach(tmp_path / "state")
        take_steps(session, bundle, 3)
        session.save()
        tokens = fixed_tokens(1, SEQ)
        with Dataset() as dataset:
            dataset.add([(tokens[0, :-1].tolist(), tokens[0, 1:].tolist())], 0)
            loss = session.evaluate(dataset).loss
    report = Bundle.open(bundle).export_adapter(tmp_path / "hf", state=tmp_path / "state").as_dict()
    assert report["format"] == "hf"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    with torch.no_grad():
        assert float(model(input_ids=tokens, labels=tokens).loss) == pytest.approx(loss, rel=1e-5)
    Bundle.open(bundle).import_adapter(tmp_path / "hf", state=tmp_path / "again")
    with Session.open(bundle) as session:
        session.attach(tmp_path / "again")
        with Dataset() as dataset:
            dataset.add([(tokens[0, :-1].tolist(), tokens[0, 1:].tolist())], 0)
            assert session.evaluate(dataset).loss == loss


def test_another_models_weights_are_refused(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama_tied", "spzo", split="head", perturbations="1,1", **FULL)
    with pytest.raises(StateError, match="no parameter"):
        Bundle.open(bundle).import_adapter(
            compiler.model("gpt2"), format="hf", state=tmp_path / "state"
        )
    assert not (tmp_path / "state").exists()


def test_memory_is_that_of_one_copy_and_what_is_kept(compiler: Compiler, tmp_path: Path) -> None:
    """At most MeZO's, the first block's output and 5 %."""
    rows, length = 16, 128
    settings = {"max_length": length, "batch_size": rows, "weights": "int4"}
    bundles = {
        "mezo": compiler.bundle("llama_tied", "mezo", num_queries=1, **settings),
        "spzo": compiler.bundle("llama_tied", "spzo", perturbations="2,4", **settings),
    }
    examples = examples_file(tmp_path, Shape(length, rows, 1), VOCAB_SIZE)
    anonymous = {}
    for name, bundle in bundles.items():
        sample = run_steps(bundle, examples, threads=1, steps=3, warmup=0)
        assert sample.peak_anonymous_mb is not None
        anonymous[name] = sample.peak_anonymous_mb
    kept = rows * length * tiny("llama_tied").config.hidden_size * 4 / 1e6
    assert anonymous["spzo"] <= 1.05 * anonymous["mezo"] + kept


@pytest.mark.parametrize(
    ("begin", "found"), [(9, "begin: found 9"), (1, "a group without a trainable slot")]
)
def test_levels_that_do_not_belong_to_the_bundle_are_refused(
    compiler: Compiler, tmp_path: Path, begin: int, found: str
) -> None:
    bundle = compiler.bundle("llama_tied", "spzo", perturbations="1,1", weights="int4")
    copy = shutil.copytree(bundle, tmp_path / "copy")
    content = json.loads((copy / "manifest.json").read_text())
    content["step"]["levels"][1]["begin"] = begin
    content["bundle_id"] = manifests.bundle_id(content)
    (copy / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(BundleError, match=found):
        Session.open(copy)


def test_losses_fall(compiler: Compiler) -> None:
    bundle = compiler.bundle(
        "llama_tied", "spzo", perturbations="2,4", weights="int4", learning_rate=0.1
    )
    with Session.open(bundle) as session:
        losses = [step.loss for step in take_steps(session, bundle, 200)]
    assert np.mean(losses[-20:]) < 0.75 * losses[0]
