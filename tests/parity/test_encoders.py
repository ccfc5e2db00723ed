"""Masked language models: the session's steps against the references', and a run on prompts with a mask."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForMaskedLM

from tests.support.compiled import Compiler
from tests.support.engine_parity import passed
from tests.support.tiny_models import VOCAB_SIZE, masking_tokenizer
from tests.support.transformers_examples import tokenize_file
from zoexport.api import Bundle
from zoexport.core import manifest as manifests
from zoexport.core.errors import BundleError, ConfigError
from zoexport.data.examples import IGNORED
from zoexport.session import Session

pytestmark = [pytest.mark.parity, pytest.mark.slow]
FULL = {"train": "full", "learning_rate": 1e-3, "eps": 1e-2}


def compare(bundle: Path, steps: int = 4) -> None:
    report = passed(bundle, steps)
    assert report["bounds"]["loss"] == 1e-4 and report["bounds"]["state"] == 1e-3


@pytest.mark.parametrize("perturbations", ["1,1", "2,4"])
@pytest.mark.parametrize("split", ["head", "layer:1"])
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_all_weights(compiler: Compiler, name: str, split: str, perturbations: str) -> None:
    settings = {"split": split, "perturbations": perturbations, **FULL}
    compare(compiler.bundle(name, "spzo", **settings))


@pytest.mark.parametrize("perturbations", ["1,1", "2,4"])
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_adapters_by_layer(compiler: Compiler, name: str, perturbations: str) -> None:
    settings = {"split": "layer:1", "perturbations": perturbations, "weights": "int4"}
    compare(compiler.bundle(name, "spzo", **settings))


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "distilbert", "electra", "xlm_roberta", "albert"]
)
def test_backpropagation(compiler: Compiler, name: str) -> None:
    compare(compiler.bundle(name, "mebp"))


def test_choices_and_several_batches(compiler: Compiler) -> None:
    compare(
        compiler.bundle(
            "roberta", "mebp", loss="choices", gradient_accumulation_steps=2, weights="int4"
        )
    )


def test_adapters_in_the_output_head(compiler: Compiler) -> None:
    bundle = compiler.bundle("roberta", "mebp", lora__target_modules="all-linear")
    assert "lora_B.lm_head.dense" in [
        slot["name"] for slot in Bundle.open(bundle).manifest["state"]
    ]
    compare(bundle)


def test_quantized_adapters(compiler: Compiler) -> None:
    bundle = compiler.bundle("roberta", "quzo", train="lora", weights="int4")
    passed(bundle, 4)


def test_layer_by_layer_without_gradients(compiler: Compiler) -> None:
    compare(compiler.bundle("roberta", "prge", num_queries=2))


@pytest.mark.parametrize(
    ("method", "settings"), [("mebp", {}), ("spzo", {"split": "layer:1", "perturbations": "1,2"})]
)
def test_in_mlx(compiler: Compiler, method: str, settings: dict[str, Any]) -> None:
    compare(compiler.bundle("roberta", method, "ios-mlx", **settings))


def test_layers_compute_the_mask_and_pass_hidden_states_alone(compiler: Compiler) -> None:
    manifest = Bundle.open(compiler.bundle("roberta", "mebp")).manifest
    assert manifest["bidirectional"] == {"pad_token": 1}
    embedding, first, second, _ = manifest["stages"]
    assert first["forward"] == second["forward"] != embedding["forward"]
    length = manifest["settings"]["max_length"]
    for program in manifest["programs"]:
        roles = [value["role"] for value in (*program["inputs"], *program["outputs"])]
        layer = program.get("family", "").startswith("layer")
        assert roles.count("tokens") == (layer or program.get("family") == "embedding")
        assert not layer or roles.count("activation") == (1 if "backward" in program["name"] else 2)
        # Saved tensors may have a dimension for heads, so that the number of dimensions says nothing.
        shapes = [value["shape"] for value in program["inputs"] if value["role"] != "weight"]
        assert all(shape.count(length) <= 1 for shape in shapes), "a mask of n x n passes"


@pytest.mark.parametrize(
    ("method", "settings", "fix"),
    [
        ("prge", {"target": "ios-mlx"}, "granularity=layer"),
        ("senszoq", {}, "Train adapters"),
        ("quzo", {"weights": "int8"}, "train=lora"),
    ],
)
def test_what_takes_no_encoder_says_so(
    compiler: Compiler, method: str, settings: dict[str, Any], fix: str
) -> None:
    with pytest.raises(ConfigError, match="RobertaForMaskedLM") as raised:
        compiler.bundle("roberta", method, **settings)
    assert fix in raised.value.fix


def test_a_target_that_was_not_compared_is_refused(compiler: Compiler) -> None:
    with pytest.raises(ConfigError, match="RobertaForMaskedLM") as raised:
        compiler.bundle("roberta", "prge", "ios-coreml", granularity="layer")
    assert "ios-coreml" in raised.value.where and "ios-mlx" in raised.value.fix


@pytest.mark.parametrize("pad", [VOCAB_SIZE, -1, "one"])
def test_a_pad_token_that_the_model_lacks_is_refused(
    compiler: Compiler, tmp_path: Path, pad: Any
) -> None:
    shutil.copytree(compiler.bundle("roberta", "mebp"), tmp_path / "bundle")
    path = tmp_path / "bundle" / "manifest.json"
    content = json.loads(path.read_text())
    content["bidirectional"] = {"pad_token": pad}
    content["bundle_id"] = manifests.bundle_id(content)
    path.write_text(json.dumps(content))
    with pytest.raises(BundleError, match="pad_token"):
        Session.open(tmp_path / "bundle")


def write_prompts(path: Path) -> Path:
    """Films that were praised or blamed; the choices differ in their number of tokens."""
    words = {" great": ("warm", "funny", "one of the best"), " terrible": ("dull", "slow", "empty")}
    lines = [
        {
            "prompt": f"The film is {word}{more}. It was <mask>.",
            "completion": completion,
            "choices": list(words),
        }
        for completion, found in words.items()
        for word in found
        for more in ("", " and a story about a family by the sea")
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def choices_loss(model: Any, examples: list[Any]) -> float:
    """The cross-entropy over each example's choices, by transformers, each choice in a call of its own."""
    losses = []
    for example in examples:
        scores = []
        for candidate in example.candidates:
            labels = torch.tensor(candidate.labels)
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([candidate.tokens])).logits[0]
            chosen = labels != IGNORED
            logprobs = torch.log_softmax(logits[chosen].double(), -1)
            scores.append(logprobs.gather(1, labels[chosen][:, None]).sum())
        losses.append(-torch.log_softmax(torch.stack(scores), 0)[example.target])
    return float(torch.stack(losses).mean())


def test_a_run_on_prompts_with_a_mask(compiler: Compiler, tmp_path: Path) -> None:
    data = write_prompts(tmp_path / "data.jsonl")
    tokenizer = masking_tokenizer()
    lengths = {
        len(tokenizer(c, add_special_tokens=False)["input_ids"]) for c in (" great", " terrible")
    }
    assert len(lengths) == 2, "the choices have as many tokens each"
    bundle = compiler.bundle(
        "roberta", "mebp", max_length=64, batch_size=4, loss="choices", learning_rate=1e-2
    )
    state, opened = tmp_path / "state", Bundle.open(bundle)
    before = opened.evaluate(data)
    report = opened.train(data, state=state, steps=30)
    after = opened.evaluate(data, state=state)
    assert report.steps == 30 and report.shortened == 0
    assert after.loss < 0.5 * before.loss
    assert after.accuracy is not None and before.accuracy is not None
    assert after.accuracy > before.accuracy

    opened.export_adapter(tmp_path / "adapter", state=state, format="peft")
    examples = tokenize_file(data, bundle, 64, masked=True).examples
    base = AutoModelForMaskedLM.from_pretrained(
        compiler.model("roberta"), dtype=torch.float32
    ).eval()
    assert choices_loss(base, examples) == pytest.approx(before.loss, rel=1e-5)
    adapted = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert choices_loss(adapted, examples) == pytest.approx(after.loss, rel=1e-5)


def test_trained_weights_leave_as_a_model(compiler: Compiler, tmp_path: Path) -> None:
    data = write_prompts(tmp_path / "data.jsonl")
    settings = {
        "split": "head",
        "perturbations": "1,1",
        "loss": "choices",
        "max_length": 64,
        **FULL,
    }
    bundle = compiler.bundle("roberta", "spzo", **settings)
    state, opened = tmp_path / "state", Bundle.open(bundle)
    opened.train(data, state=state, steps=3)
    after = opened.evaluate(data, state=state)
    assert opened.export_adapter(tmp_path / "hf", state=state).format == "hf"
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    examples = tokenize_file(data, bundle, 64, masked=True).examples
    assert choices_loss(model, examples) == pytest.approx(after.loss, rel=1e-5)
