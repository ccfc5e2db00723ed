"""Models with what was trained in their weights: transformers loads them, and their losses are the session's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from tests.support.compiled import Compiler
from tests.support.tiny_models import fixed_tokens, masking_tokenizer, tiny
from tests.support.verbs import run
from zoexport import models
from zoexport.api import Bundle
from zoexport.core import int4
from zoexport.core.errors import ConfigError, ModelError
from zoexport.run.transfer import round_weights
from zoexport.session import Dataset, Session
from zoexport.trained import DTYPES, Output
from zoexport.trained.model_files import save_model

pytestmark = pytest.mark.parity
STEPS = 4
LONGER = {"quzo": (40, 5.0)}
"""Steps and rate of methods that move integers, which small rates leave where they are."""
RATE = 0.05
LORA = {"weights": "int4", "lora__target_modules": "all-linear", "lora__alpha": 6}
# The first of each kind has the settings of that kind's own tests, whose bundle it is.
CASES = [
    ("llama_tied", "mebp", "host", LORA),
    (
        "llama_tied",
        "senszoq",
        "host",
        {"weights": "int4", "learning_rate": 1e-3, "eps": 1e-2, "num_queries": 2},
    ),
    ("llama_tied", "quzo", "host", {"weights": "int4", "num_queries": 2}),
]
MORE = [
    (
        "llama_tied",
        "spzo",
        "host",
        {
            "train": "full",
            "learning_rate": 1e-3,
            "eps": 1e-2,
            "split": "head",
            "perturbations": "1,1",
        },
    ),
    ("gpt2", "mebp", "host", {**LORA, "weights": "int8"}),
    ("qwen2", "mebp", "ios-mlx", {"weights": "int4", "group_size": 64}),
    ("gemma3", "prge", "host", {"weights": "int4", "activations": "fp32"}),
    ("gpt2", "senszoq", "host", {"weights": "int4"}),
    ("gpt2", "quzo", "host", {"weights": "int8"}),
    ("opt", "quzo", "host", {"weights": "int4", "train": "lora"}),
]


def _loss(session: Session, tokens: torch.Tensor) -> float:
    with Dataset() as dataset:
        for row in tokens.tolist():
            dataset.add([(row[:-1], row[1:])], 0)
        return session.evaluate(dataset).loss


def _trained(bundle: Path, state: Path, steps: int, rate: float) -> tuple[float, float]:
    """The losses before and after some steps."""
    tokens = fixed_tokens(3, 20)
    with Session.open(bundle) as session, Dataset() as dataset:
        session.attach(state)
        session.configure(learning_rate=rate)
        before = _loss(session, fixed_tokens(2, 20))
        for row in tokens.tolist():
            dataset.add([(row[:-1], row[1:])], 0)
        for _ in range(steps):
            session.step(dataset, range(3))
        session.save()
        return before, _loss(session, fixed_tokens(2, 20))


def _their_loss(folder: Path) -> float:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = fixed_tokens(2, 20)
    with torch.no_grad():
        return float(model(input_ids=tokens, labels=tokens).loss)


@pytest.mark.parametrize(
    ("name", "method", "target", "settings"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
    ids=["-".join(case[:3]) for case in (*CASES, *MORE)],
)
def test_losses_are_the_sessions(
    compiler: Compiler,
    tmp_path: Path,
    name: str,
    method: str,
    target: str,
    settings: dict[str, Any],
) -> None:
    bundle = compiler.bundle(name, method, target, **settings)
    steps, rate = LONGER.get(method, (STEPS, RATE))
    before, ours = _trained(bundle, tmp_path / "state", steps, rate)
    assert abs(before - ours) > 4e-4 * ours  # many times what the losses below may differ by
    output = tmp_path / "merged"
    found = (
        Bundle.open(bundle)
        .export_adapter(output, state=tmp_path / "state", format="merged")
        .as_dict()
    )
    assert (found["format"], found["steps"]) == ("merged", steps)
    assert found["bytes"] == sum(path.stat().st_size for path in output.iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in output.iterdir()
    }
    assert _their_loss(output) == pytest.approx(ours, rel=2e-5)
    text = "A warm and funny film."
    theirs = AutoTokenizer.from_pretrained(compiler.model(name))(text).input_ids
    assert AutoTokenizer.from_pretrained(output)(text).input_ids == theirs
    # Without a state it is the bundle as compiled.
    Bundle.open(bundle).export_adapter(output, format="merged", force=True)
    assert _their_loss(output) == pytest.approx(before, rel=2e-5)


def test_weights_are_those_that_the_bundle_keeps(compiler: Compiler, tmp_path: Path) -> None:
    """The rounding is repeated on the original model; the bundle's own file has the same integers."""
    bundle = compiler.bundle("llama_tied", "mebp", **LORA)
    Bundle.open(bundle).export_adapter(tmp_path / "merged", format="merged")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    stored = load_file(bundle / "weights.safetensors")
    quantized = [name.removesuffix(".codes") for name in stored if name.endswith(".codes")]
    assert len(quantized) >= 15
    for name in quantized:
        values = int4.dequantize_int4(stored[f"{name}.codes"], stored[f"{name}.scales"])
        # The head is tied to the embedding, which is the one that transformers writes.
        theirs = merged[name.replace("lm_head", "model.embed_tokens")]
        assert torch.equal(theirs, values), name


@pytest.mark.slow
def test_rotated_weights_are_rotated_back(compiler: Compiler, tmp_path: Path) -> None:
    """Activations are rounded too, so losses are near and not equal; unrotated weights would be far off."""
    bundle = compiler.bundle("llama_tied", "prge", weights="int4", activations="int8")
    settings = Bundle.open(bundle).manifest["settings"]
    original = models.load(models.resolve(str(compiler.model("llama_tied")))).model
    plain = {name: value.clone() for name, value in original.named_parameters()}
    names = ["model.layers.0.mlp.down_proj.weight", "lm_head.weight"]
    round_weights(original, settings, names)
    for name in (names[0], "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"):
        error = (original.get_parameter(name) - plain[name]).norm() / plain[name].norm()
        assert 0.01 < error < 0.15
    before, _ = _trained(bundle, tmp_path / "state", STEPS, RATE)
    Bundle.open(bundle).export_adapter(tmp_path / "merged", format="merged")
    assert _their_loss(tmp_path / "merged") == pytest.approx(before, rel=2e-2)


@pytest.mark.slow
def test_an_encoder(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("bert", "mebp", **LORA)
    tokens = masking_tokenizer()("A warm <mask> film.").input_ids
    place, label = tokens.index(masking_tokenizer().mask_token_id), 77
    labels = [label if i == place else -100 for i in range(len(tokens))]
    with Session.open(bundle) as session, Dataset() as dataset:
        session.attach(tmp_path / "state")
        dataset.add([(tokens, labels)], 0)
        for _ in range(STEPS):
            session.step(dataset, [0])
        session.save()
        ours = session.evaluate(dataset).loss
    Bundle.open(bundle).export_adapter(tmp_path / "out", state=tmp_path / "state", format="merged")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    with torch.no_grad():
        given = torch.tensor([tokens])
        # The first token has the number of this model's padding, which nothing sees.
        pad = json.loads((bundle / "manifest.json").read_text())["bidirectional"]["pad_token"]
        logits = model(input_ids=given, attention_mask=(given != pad).long()).logits[0, place]
    assert float(-logits.log_softmax(-1)[label]) == pytest.approx(ours, rel=1e-4)


def test_another_place_of_the_model(compiler: Compiler, tmp_path: Path) -> None:
    """--model names the original where the bundle was compiled elsewhere; another model is refused."""
    bundle = compiler.bundle("llama_tied", "mebp", **LORA)
    output = tmp_path / "merged"
    with pytest.raises(ModelError, match="weights that the bundle was compiled from"):
        Bundle.open(bundle).export_adapter(
            output, format="merged", model=str(compiler.model("gpt2"))
        )
    assert list(tmp_path.iterdir()) == []
    Bundle.open(bundle).export_adapter(
        output, format="merged", model=str(compiler.model("llama_tied"))
    )
    with pytest.raises(ConfigError, match="already there"):
        Bundle.open(bundle).export_adapter(output, format="merged")


@pytest.mark.parametrize(("name", "bits"), [("bf16", 8), ("fp16", 11), ("fp32", 24)])
def test_the_type_of_the_weights(compiler: Compiler, tmp_path: Path, name: str, bits: int) -> None:
    bundle = compiler.bundle("llama_tied", "mebp", **LORA)
    for dtype in (None, name):
        Bundle.open(bundle).export_adapter(tmp_path / str(dtype), format="merged", dtype=dtype)
    exact, found = (load_file(tmp_path / str(at) / "model.safetensors") for at in (None, name))
    config = json.loads((tmp_path / name / "config.json").read_text())
    for key, value in exact.items():
        assert value.dtype == torch.float32  # as the original
        assert found[key].dtype == getattr(torch, DTYPES[name])
        assert torch.allclose(found[key].float(), value, rtol=2.0**-bits, atol=1e-7)
    assert config["dtype"] == config["torch_dtype"] == DTYPES[name]
    assert oct((tmp_path / name / "model.safetensors").stat().st_mode)[-3:] != "600"


def test_the_type_of_the_original_weights_is_kept(tmp_path: Path) -> None:
    tiny("llama").to(torch.bfloat16).save_pretrained(tmp_path / "half")
    loaded = models.load(models.resolve(str(tmp_path / "half")))
    save_model(Output("merged", tmp_path / "merged"), loaded)
    kept = load_file(tmp_path / "merged" / "model.safetensors")
    assert {value.dtype for value in kept.values()} == {torch.bfloat16}
    loaded.model.to(torch.float32).get_parameter("lm_head.weight").data[0, 0] = 1e5
    with pytest.raises(ConfigError, match=r"weight lm_head.weight.*100000.*dtype=.bf16. or fp32"):
        save_model(Output("merged", tmp_path / "no", dtype="fp16"), loaded)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("method", "kind", "options", "message"),
    [
        ("mebp", "peft", {"dtype": "fp16"}, "dtype 'fp16'.*the format 'peft'"),
        ("mebp", "merged", {"dtype": "f16"}, "dtype 'f16'.*fp32, fp16, bf16"),
        ("senszoq", "gguf", {}, 'trains chosen weights.*Use format="merged"'),
        ("senszoq", "merged", {"outtype": "f16"}, "outtype 'f16'.*the format 'merged'"),
        ("mebp", "peft", {"outtype": "f16"}, "outtype 'f16'.*the format 'peft'"),
        ("mebp", "gguf", {"outtype": "f61"}, "outtype 'f61'.*f32, f16, q8_0"),
        ("mebp", "gguf", {"model": "m"}, "model 'm'.*takes nothing from the original model"),
    ],
)
def test_what_cannot_be_written(
    compiler: Compiler,
    tmp_path: Path,
    method: str,
    kind: str,
    options: dict[str, str],
    message: str,
) -> None:
    settings = {name: settings for _, name, _, settings in CASES}[method]
    bundle = compiler.bundle("llama_tied", method, **settings)
    with pytest.raises(ConfigError, match=message):
        Bundle.open(bundle).export_adapter(tmp_path / "out", format=kind, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_merged_model_is_no_adapter(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama_tied", "mebp", **LORA)
    with pytest.raises(ConfigError, match="a whole model"):
        Bundle.open(bundle).import_adapter(tmp_path, format="merged", state=tmp_path / "state")


@pytest.mark.slow
def test_the_command_line(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama_tied", "mebp", **LORA)
    done = run("adapter", "export", bundle, "--format", "merged", "-o", tmp_path / "merged")
    assert done.returncode == 0, done.stderr
    assert '"format": "merged"' in done.stdout
    assert (tmp_path / "merged" / "model.safetensors").is_file()
