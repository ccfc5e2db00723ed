"""What the gradients' memory is, models that are not in memory, shared weights, and the verb itself."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.tiny_models import SENTENCES, VOCAB_SIZE, save_tiny, tiny, tiny_tokenizer
from tests.support.verbs import run, verb
from zoexport import models
from zoexport.cli import main
from zoexport.core.errors import ConfigError, ModelError
from zoexport.core.mask import read_mask
from zoexport.data import corpus
from zoexport.data.examples import Candidate
from zoexport.data.samples import Samples
from zoexport.tools import mapped
from zoexport.tools.gradients import hessian_gradients, squared_gradients
from zoexport.tools.linears import Linears, linear_weights
from zoexport.tools.offload import offload
from zoexport.tools.sensitivity import MaskConfig, choose_mask

TOKENS = tiny_tokenizer()(SENTENCES[0])["input_ids"]
SEQUENCES = [Candidate.predicting(TOKENS, 0), Candidate.predicting(TOKENS[::-1], 9)]


def quiet(phase: str, done: float | None) -> None:
    pass


def ignore(share: float) -> None:
    pass


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES[:4]))
    return path


# ---- memory -----------------------------------------------------------------------------------------------------


def wide_llama(layers: int) -> Any:
    """A model whose layers have 16.8 MB of linear weights each, the largest of them 4.2 MB."""
    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=4,
        vocab_size=VOCAB_SIZE,
    )
    return LlamaForCausalLM._from_config(config, attn_implementation="eager").eval()


def most_memory(model: Any, linears: Linears, folder: Path) -> float:
    """The most MB of tensors that a pass has at a time beside those that are there before."""
    short = [Candidate.predicting(TOKENS[:6], 0)] * 2
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled,
        squared_gradients(model, linears, short, folder, ignore) as squares,
    ):
        assert all(bool((squares[name] > 0).any()) for name in squares)
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    # A safetensors file is mapped as one storage, which takes no memory.
    sizes = [event.nbytes() for event in events if abs(event.nbytes()) < 50e6]
    return max(itertools.accumulate(sizes)) / 1e6


def test_memory_for_gradients_is_that_of_one_weight(tmp_path: Path) -> None:
    found = []
    for layers in (1, 7):
        model = wide_llama(layers)
        model.requires_grad_(False)
        found.append(most_memory(model, linear_weights(model), tmp_path))
    few, many = found
    # One gradient, and the activations of 6 tokens, 0.3 MB a layer.
    assert 4 < few < 6
    # Six more layers have 101 MB of gradients.
    assert many - few < 3


def test_weights_on_disk_are_in_memory_one_at_a_time(tmp_path: Path) -> None:
    wide_llama(7).save_pretrained(tmp_path / "model")
    loaded = models.load(models.resolve(str(tmp_path / "model")), lazy=True)
    linears = linear_weights(loaded.model)
    offload(loaded, "disk", tmp_path)
    # The gradient and the weight of a layer; all weights are 118 MB.
    assert most_memory(loaded.model, linears, tmp_path) < 20


def test_squares_lie_in_a_file_that_is_gone_afterwards(tmp_path: Path) -> None:
    shapes = {"a": (3, 5), "b": (1025, 2), "c": (1, 1)}
    with mapped.mapped_zeros(shapes, tmp_path) as found:
        assert list(found) == ["a", "b", "c"]
        for name, shape in shapes.items():
            assert tuple(found[name].shape) == shape
            assert not found[name].any()
            found[name].fill_(len(name) + shape[0])
        assert {name: float(found[name].mean()) for name in found} == {"a": 4, "b": 1026, "c": 2}
        assert list(tmp_path.iterdir()) == []
    with (
        pytest.raises(ConfigError, match="scratch files in"),
        mapped.mapped_zeros(shapes, tmp_path / "no"),
    ):
        pass


# ---- shared and unused weights ----------------------------------------------------------------------------------


def plain(model: Any, name: str, kind: str) -> torch.Tensor:
    """Averaged squares (or Hessian-gradient products) of one weight by autograd, over all linear weights."""
    weights = {n: layers[0].weight for n, layers in linear_weights(model).items()}
    model.requires_grad_(True)
    total = torch.zeros(weights[name].shape)
    for sequence in SEQUENCES:
        logits = model(input_ids=torch.tensor([sequence.tokens])).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(sequence.labels))
        found = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        if kind == "squares":
            total += found[list(weights).index(name)].detach().square() / len(SEQUENCES)
        else:
            product = sum((g * g.detach()).sum() for g in found)
            total += torch.autograd.grad(product, weights[name])[0] / len(SEQUENCES)
    model.requires_grad_(False)
    return total


@pytest.mark.parametrize("kind", ["squares", "products"])
def test_a_shared_weight_is_one_weight(kind: str, tmp_path: Path) -> None:
    model = tiny("llama")
    model.requires_grad_(False)
    first, second = model.model.layers
    second.mlp.up_proj.weight = first.mlp.gate_proj.weight  # two layers of one weight
    second.self_attn.o_proj = first.self_attn.o_proj  # one layer that is used twice
    linears = linear_weights(model)
    assert len(linears) == 12
    passes = squared_gradients if kind == "squares" else hessian_gradients
    with passes(model, linears, SEQUENCES, tmp_path, ignore) as found:
        for name in (
            "model.layers.0.mlp.gate_proj.weight",
            "model.layers.0.self_attn.o_proj.weight",
            "model.layers.1.mlp.down_proj.weight",
        ):
            expected = plain(model, name, kind)
            assert float((found[name] - expected).norm() / expected.norm()) < 1e-5


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    model = tiny("gpt_neox")
    model.requires_grad_(False)
    linears = linear_weights(model)
    tokens = torch.tensor([TOKENS])
    before = model(input_ids=tokens).logits
    with (
        pytest.raises(RuntimeError, match="stop"),
        squared_gradients(model, linears, SEQUENCES, tmp_path, _stop),
    ):
        pass
    assert torch.equal(model(input_ids=tokens).logits, before)
    assert not any("forward" in vars(module) for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def _stop(share: float) -> None:
    raise RuntimeError("stop")


def test_an_overflowing_gradient_is_refused(tmp_path: Path) -> None:
    model = tiny("llama")
    model.requires_grad_(False)
    # The loss has a place in fp32, and its gradient; that one's square has none.
    model.lm_head.weight.mul_(1e25)
    with (
        pytest.raises(ModelError, match=r"gradient of model\.layers\.1\.mlp"),
        squared_gradients(model, linear_weights(model), SEQUENCES, tmp_path, ignore),
    ):
        pass


# ---- device maps ------------------------------------------------------------------------------------------------

MIXED = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "disk",
    "model.layers.1": "cpu",
    "model.norm": "disk",
    "model.rotary_emb": "cpu",
    "lm_head": "cpu",
}


@pytest.mark.parametrize("kind", ["sensitive", "grasp"])
@pytest.mark.parametrize("lazy", [True, False], ids=["lazy", "whole"])
@pytest.mark.parametrize(
    ("name", "device_map"),
    [
        ("llama_tied", "cpu"),
        ("llama_tied", "disk"),
        ("llama_tied", "auto"),
        ("llama_tied", MIXED),
        ("gpt2", "disk"),
        ("qwen2", "disk"),
    ],
    ids=str,
)
def test_an_offloaded_model_has_the_same_mask(
    name: str, device_map: Any, lazy: bool, kind: str, data: Path, tmp_path: Path
) -> None:
    folder = save_tiny(name, tmp_path / "model")
    source = models.resolve(str(folder))
    config = MaskConfig(density=0.01, kind=kind, max_length=64)
    expected = choose_mask(models.load(source), data, config, tmp_path, progress=quiet)
    loaded = models.load(source, lazy=lazy and device_map != "cpu")
    found = choose_mask(loaded, data, config, tmp_path, progress=quiet, device_map=device_map)
    assert found[0].facts == expected[0].facts
    assert found[1] == expected[1]
    for weight, places in expected[0].places.items():
        assert torch.equal(found[0].places[weight], places), weight
    if device_map in ("cpu", "disk"):
        assert all(parameter.is_meta for parameter in loaded.model.parameters())
    assert not list(tmp_path.glob(".*"))


def test_no_room_for_the_weights_of_a_model_without_files(tmp_path: Path) -> None:
    loaded = models.load(models.resolve(str(save_tiny("gpt2", tmp_path / "model"))))
    with pytest.raises(ConfigError, match="scratch files in"):
        offload(loaded, "disk", tmp_path / "no")


# ---- the verb ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_verb(data: Path, tmp_path: Path) -> None:
    folder = save_tiny("qwen2", tmp_path / "model")
    output = tmp_path / "new" / "qwen.mask"
    settings = ("--set", "density=0.02", "--set", "sequences=3", "--set", "max_length=48")
    arguments = ("sensitivity", folder, "--data", data, "-o", output, *settings)
    found = verb(*arguments)
    mask = read_mask(output)
    assert found.pop("seconds") > 0
    assert found.pop("peak_rss_mb") > 0
    assert 0.02 < found.pop("coverage") < 1
    weights = sum(rows * columns for rows, columns in mask.facts.shapes.values())
    assert found == {
        "mask": str(output),
        "model": "model",
        "kind": "sensitive",
        "corpus": "rows.jsonl",
        "density": 0.02,
        "chosen": mask.count(),
        "weights": weights,
        "sequences": 3,
    }
    assert mask.count() == round(0.02 * weights)
    assert mask.facts.model_sha256 == models.fingerprint(models.resolve(str(folder)))
    assert len(mask.facts.corpus_sha256) == 64
    assert (mask.facts.loss, mask.facts.seed) == ("all tokens", 0)
    shown = verb("inspect", output)
    counts = {name: places.numel() for name, places in mask.places.items()}
    assert (shown["chosen"], shown["weights"], shown["kind"]) == (
        mask.count(),
        weights,
        "sensitive",
    )
    assert shown["chosen_by_weight"] == counts
    again = run(*arguments)
    assert again.returncode == 2
    assert json.loads(again.stdout)["error"]["where"] == f"output {output}"
    offloaded = tmp_path / "disk.mask"
    verb("sensitivity", folder, "--data", data, "-o", offloaded, *settings, "--device-map", "disk")
    assert offloaded.read_bytes() == output.read_bytes()


def test_what_a_person_reads(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = save_tiny("llama", tmp_path / "model")
    arguments = ["sensitivity", str(folder), "-o", str(tmp_path / "a.mask")]
    assert main.run([*arguments, "--data", str(data), "--set", "max_length=64"]) == 0
    out, err = capfd.readouterr()
    assert "chosen  74 of 73,728 weights" in out
    assert "text    4 sequences of rows.jsonl" in out
    assert "of the squared gradient norm" in out
    assert "sensitivity: gradients of 4 sequences" in err.splitlines()
    assert main.run([*arguments, "--set", "kind=smallest", "--force"]) == 0
    assert "text" not in capfd.readouterr().out
    assert main.run(["inspect", str(tmp_path / "a.mask")]) == 0
    out = capfd.readouterr().out
    assert out.startswith("A mask of 74 of 73,728 weights\n")
    assert "kind   smallest, scope model, density 0.001" in out
    assert main.run(["inspect", str(data)]) == 2
    assert "expected a file that `zoexport sensitivity` wrote" in capfd.readouterr().err


def test_without_data_the_brown_corpus_is_read(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def rows(words: int) -> Samples:
        asked.append(words)
        return Samples(data, tmp_path / "held-out.jsonl")

    monkeypatch.setattr(corpus, "rows", rows)
    folder = save_tiny("llama", tmp_path / "model")
    config = MaskConfig(density=0.01, max_length=32)
    loaded = models.load(models.resolve(str(folder)))
    mask, _ = choose_mask(loaded, None, config, tmp_path, progress=quiet)
    assert set(asked) == {32}
    assert (mask.facts.corpus, mask.facts.max_length, mask.facts.loss) == (
        "brown",
        32,
        "all tokens",
    )
