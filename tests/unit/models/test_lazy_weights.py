"""Models whose weights stay in their files: the same model, the same values, and no memory for them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.support.gguf_models import write_gguf
from tests.support.tiers import slow_architectures
from tests.support.tiny_models import ARCHITECTURES, fixed_tokens, from_config, save_tiny, tiny
from zoexport import models
from zoexport.core.errors import ModelError
from zoexport.ir.capture import capture
from zoexport.models.stand_ins import StandIns
from zoexport.models.weights import LoadedWeights, StoredTensor, check_finite, row_pieces


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of two tiny models, by architecture."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("llama", "llama_tied"):
        save_tiny(name, folder / name, tokenizer=False)
    return folder


@pytest.fixture
def llama(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved / "llama", tmp_path / "llama"))


@pytest.fixture
def tied(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved / "llama_tied", tmp_path / "tied"))


def _both(folder: Path) -> tuple[models.LoadedModel, models.LoadedModel]:
    source = models.resolve(str(folder))
    return models.load(source), models.load(source, lazy=True)


def _edit_tensors(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file(change(tensors) or tensors, path, {"format": "pt"})


def _aliases(model: Any) -> list[list[str]]:
    groups: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups[parameter.data_ptr()].append(name)
    return sorted(groups.values())


def _fill(loaded: models.LoadedModel) -> None:
    for name, parameter in loaded.model.named_parameters(remove_duplicate=False):
        parameter.copy_(loaded.weights.read(name))


def _assert_same(full: models.LoadedModel, lazy: models.LoadedModel) -> None:
    """Every name, value, alias and setting is that of the model that was loaded as a whole."""
    assert not full.lazy
    assert lazy.weights.names() == full.weights.names() == list(full.model.state_dict())
    for name, expected in full.model.state_dict().items():
        value = lazy.weights.read(name)
        assert torch.equal(value, expected), name
        assert torch.equal(value, full.weights.read(name))
        assert value.dtype == torch.float32 and value.is_contiguous()
        assert lazy.weights.shape(name) == full.weights.shape(name) == tuple(expected.shape)
        rows = expected.shape[0]
        for reader in (lazy.weights, full.weights):
            assert torch.equal(reader.read_rows(name, rows // 2, rows), expected[rows // 2 :])
    assert _aliases(lazy.model) == _aliases(full.model)
    for (name, buffer), (other, expected) in zip(
        lazy.model.named_buffers(), full.model.named_buffers(), strict=True
    ):
        assert name == other and torch.equal(buffer, expected)
        assert buffer.dtype == expected.dtype
    for parameter in lazy.model.parameters():
        assert parameter.dtype == torch.float32 and not parameter.requires_grad
        assert lazy.lazy != bool(parameter.any())
    assert [path for path, _ in lazy.model.named_modules()] == [
        path for path, _ in full.model.named_modules()
    ]
    assert not any(module.training for module in lazy.model.modules())
    assert lazy.config.to_dict() == full.config.to_dict()
    assert lazy.config._attn_implementation == "eager"
    assert (lazy.sha256, lazy.architecture) == (full.sha256, full.architecture)
    assert lazy.fan_in_fan_out == full.fan_in_fan_out


@pytest.mark.parametrize("name", slow_architectures(ARCHITECTURES))
def test_it_is_the_model_that_load_gives(name: str, tmp_path: Path) -> None:
    full, lazy = _both(save_tiny(name, tmp_path, tokenizer=False))
    # GPT-2's matrices are stored transposed.
    assert lazy.lazy == (name != "gpt2")
    _assert_same(full, lazy)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_in_shards(dtype: torch.dtype, tmp_path: Path) -> None:
    tiny("llama").to(dtype).save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    full, lazy = _both(tmp_path)
    assert lazy.lazy
    _assert_same(full, lazy)


@pytest.mark.parametrize("name", ["llama", "llama_tied", "gemma3"])
def test_capture_needs_no_weights(name: str, tmp_path: Path) -> None:
    full, lazy = _both(save_tiny(name, tmp_path, tokenizer=False))
    expected, graph = capture(full.model, 20), capture(lazy.model, 20)
    assert graph.programs["forward"].inputs == expected.programs["forward"].inputs
    ours, theirs = (str(one.programs["forward"].module.graph) for one in (graph, expected))
    assert ours == theirs
    parameters = dict(lazy.model.named_parameters(remove_duplicate=False))
    for weight, value in graph.weights.items():
        if weight in parameters:
            assert value.data_ptr() == parameters[weight].data_ptr()
            assert torch.equal(lazy.weights.read(weight), expected.weights[weight])
        else:
            assert torch.equal(value, expected.weights[weight])
    _fill(lazy)
    tokens = fixed_tokens(2, 20)
    with torch.no_grad():
        assert torch.equal(lazy.model(tokens).logits, full.model(tokens).logits)


def test_names_without_the_body_s_prefix(tied: Path) -> None:
    _edit_tensors(tied, lambda ts: {name.removeprefix("model."): t for name, t in ts.items()})
    full, lazy = _both(tied)
    assert lazy.lazy
    _assert_same(full, lazy)


def test_tensors_that_the_model_does_not_use(llama: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8), "x.y": torch.ones(3)}
    _edit_tensors(llama, lambda tensors: {**tensors, **extra})
    full, lazy = _both(llama)
    assert lazy.lazy
    _assert_same(full, lazy)


def test_a_tied_weight_under_its_other_name(tied: Path) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")

    _edit_tensors(tied, rename)
    full, lazy = _both(tied)
    assert lazy.lazy
    _assert_same(full, lazy)


@pytest.mark.parametrize("change", [0.0, 1.0])
def test_a_tied_weight_that_is_stored_twice(tied: Path, change: float) -> None:
    def double(tensors: dict[str, torch.Tensor]) -> None:
        head = tensors["model.embed_tokens.weight"].clone()
        head[-1, -1] += change
        tensors["lm_head.weight"] = head

    _edit_tensors(tied, double)
    full, lazy = _both(tied)
    # transformers ties only what is equal.
    assert lazy.lazy == (len(_aliases(full.model)) < len(full.weights.names())) == (change == 0)
    _assert_same(full, lazy)


@pytest.mark.parametrize("declared", ["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"])
def test_the_text_model_of_a_configuration_with_images(tmp_path: Path, declared: str) -> None:
    import transformers

    size = {"hidden_size": 64, "intermediate_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    linear = {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
    text = {**size, **heads, **linear, "num_hidden_layers": 4, "vocab_size": 320}
    config = transformers.Qwen3_5Config(
        text_config=text, vision_config={"depth": 1, "hidden_size": 32, "num_heads": 2}
    )
    alone = declared.endswith("CausalLM")
    saved = getattr(transformers, declared)(config.text_config if alone else config)
    saved.save_pretrained(tmp_path)
    config.architectures = [declared]
    config.save_pretrained(tmp_path)
    full, lazy = _both(tmp_path)
    assert lazy.lazy and type(lazy.config) is not type(config)
    name = "layers.3.mlp.up_proj.weight"
    expected = next(value for key, value in saved.named_parameters() if key.endswith(name))
    assert torch.equal(lazy.weights.read(f"model.{name}"), expected)
    _assert_same(full, lazy)


@pytest.mark.parametrize("kind", ["Mixtral", "Olmoe"])
def test_fused_experts_stay_in_their_files(kind: str, tmp_path: Path) -> None:
    import transformers

    size = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = getattr(transformers, f"{kind}Config")(
        **size, num_hidden_layers=2, intermediate_size=32, vocab_size=320, num_local_experts=8
    )
    from_config(config).save_pretrained(tmp_path, max_shard_size="100KB")
    files = tmp_path.glob("model-*.safetensors")
    assert sum("experts.1." in name for file in files for name in load_file(file)) == 6
    full, lazy = _both(tmp_path)
    assert lazy.lazy
    _assert_same(full, lazy)
    rows = lazy.weights.read_rows("model.layers.1.mlp.experts.gate_up_proj", 2, 4)
    assert rows.shape == (2, 64, 64)


def test_pickled_weights_are_loaded(llama: Path) -> None:
    torch.save(load_file(llama / "model.safetensors"), llama / "pytorch_model.bin")
    (llama / "model.safetensors").unlink()
    full, lazy = _both(llama)
    assert not lazy.lazy
    _assert_same(full, lazy)


def test_packed_weights_are_loaded(tmp_path: Path) -> None:
    full, lazy = _both(write_gguf(tmp_path / "tiny.gguf"))
    assert not lazy.lazy
    _assert_same(full, lazy)


def test_weights_in_a_file_that_the_configuration_names_are_loaded(llama: Path) -> None:
    other = {name: t * 2 for name, t in load_file(llama / "model.safetensors").items()}
    save_file(other, llama / "other.safetensors", {"format": "pt"})
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(
        json.dumps({**config, "transformers_weights": "other.safetensors"})
    )
    full, lazy = _both(llama)
    assert torch.equal(full.weights.read("lm_head.weight"), other["lm_head.weight"])
    assert not lazy.lazy
    _assert_same(full, lazy)


def test_an_adapter_in_the_folder_of_a_model_is_left_out(llama: Path) -> None:
    """transformers would add it to the model by itself."""
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(tiny("llama"), LoraConfig(target_modules=["q_proj"]))
    adapted.save_pretrained(llama)
    full, lazy = _both(llama)
    assert lazy.lazy
    _assert_same(full, lazy)
    assert full.weights.names() == list(tiny("llama").state_dict())
    for loaded in (full, lazy):
        (note,) = loaded.notes
        assert note.endswith("is not part of the model; pass it as adapter to start from it")


def test_weights_that_the_model_does_not_use_are_noted(llama: Path) -> None:
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    for loaded in _both(llama):
        (note,) = loaded.notes
        assert note.startswith("9 weights of the files are not used by LlamaForCausalLM: model.")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight"])
def test_weights_that_are_not_finite_are_refused(llama: Path, name: str, value: float) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name][3, 2] = value

    _edit_tensors(llama, spoil)
    source = models.resolve(str(llama))
    message = f"NaN or infinite values in the tensor {name} .1 of "
    with pytest.raises(ModelError, match=message):
        models.load(source)
    reader = models.load(source, lazy=True).weights
    with pytest.raises(ModelError, match=message):
        reader.read(name)
    with pytest.raises(ModelError, match=message):
        reader.read_rows(name, 3, 4)
    assert reader.read_rows(name, 0, 3).isfinite().all()


def test_large_weights_are_finite() -> None:
    values = torch.full((4,), 3e38)
    assert not values.sum().isfinite()
    assert check_finite("here", "large", values) is values


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_type_of_the_stored_weights_is_known(llama: Path, dtype: torch.dtype) -> None:
    def convert(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            name: value if value.dim() == 1 else value.to(dtype) for name, value in tensors.items()
        }

    _edit_tensors(llama, convert)
    assert [f"torch.{loaded.dtype}" for loaded in _both(llama)] == [str(dtype)] * 2


def test_missing_weights(llama: Path) -> None:
    source = models.resolve(str(llama))

    def cut(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["lm_head.weight"]

    _edit_tensors(llama, cut)
    messages = []
    for lazy in (False, True):
        with pytest.raises(ModelError, match=r"1 weights of LlamaForCausalLM.*lm_head") as raised:
            models.load(source, lazy=lazy)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_weights_of_another_shape(llama: Path) -> None:
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    with pytest.raises(ModelError, match="cannot load"):
        models.load(models.resolve(str(llama)), lazy=True)


def test_a_shard_that_is_damaged_after_it_was_found(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path, max_shard_size="200KB")
    source = models.resolve(str(tmp_path))
    loaded = models.load(source, lazy=True)
    shard = sorted(tmp_path.glob("model-*.safetensors"))[0]
    lost = next(iter(load_file(shard)))
    shard.write_bytes(shard.read_bytes()[:-1])
    for read in (
        lambda: models.load(source, lazy=True),
        lambda: loaded.weights.read(lost),
        lambda: loaded.weights.read_rows(lost, 0, 1),
    ):
        with pytest.raises(ModelError, match=rf"{shard.name}: found a damaged or incomplete file"):
            read()
    shard.unlink()
    with pytest.raises(ModelError, match="found a damaged or incomplete file"):
        loaded.weights.read(lost)


def test_bad_names_and_rows(saved: Path) -> None:
    for loaded in _both(saved / "llama"):
        rows = loaded.weights.shape("lm_head.weight")[0]
        for begin, end in ((-1, 2), (0, rows + 1), (5, 5), (6, 5)):
            with pytest.raises(IndexError, match=r"lm_head\.weight"):
                loaded.weights.read_rows("lm_head.weight", begin, end)
        for call in (loaded.weights.shape, loaded.weights.read):
            with pytest.raises(KeyError):
                call("lm_head")


class _Buffers(nn.Module):
    """What few models have: persistent buffers, of other types and without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 2), requires_grad=False)
        self.register_buffer("scale", torch.zeros(()))
        self.register_buffer("table", torch.zeros(2, 2, dtype=torch.int64))


def test_persistent_buffers_have_their_values(tmp_path: Path) -> None:
    stored = {
        "weight": torch.arange(6.0).reshape(3, 2).bfloat16(),
        "scale": torch.tensor(2.5),
        "table": torch.tensor([[1, 2], [3, 4]]),
    }
    save_file(stored, tmp_path / "a.safetensors")
    stand_ins = StandIns([tmp_path / "a.safetensors"])
    model = _Buffers()
    model.load_state_dict(stand_ins.tensors, assign=True)
    weights = stand_ins.weights(model)
    assert weights is not None and weights.names() == list(model.state_dict())
    assert model.scale == 2.5 and torch.equal(model.table, stored["table"])
    assert not model.weight.any()
    for name, expected in stored.items():
        value = weights.read(name)
        assert value.dtype == (torch.int64 if name == "table" else torch.float32)
        assert torch.equal(value, expected.to(value.dtype))
    full = LoadedWeights(_Buffers())
    assert full.read("table").dtype == torch.int64 and full.read("scale").shape == ()


@pytest.mark.parametrize("made", [lambda t: t.T, lambda t: t[:2], lambda t: t.clone()])
def test_a_weight_that_is_not_just_one_tensor(made: Any, tmp_path: Path) -> None:
    save_file({"weight": torch.ones(3, 3), "bias": torch.ones(3)}, tmp_path / "a.safetensors")
    stand_ins = StandIns([tmp_path / "a.safetensors"])
    model = nn.Linear(3, 3)
    model.load_state_dict(stand_ins.tensors, assign=True)
    assert stand_ins.weights(model) is not None
    model.weight = nn.Parameter(made(model.weight.detach()), requires_grad=False)
    assert stand_ins.weights(model) is None


def test_a_large_tensor_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoexport.models.weights._PIECE_BYTES", 4 * 5 * 3)
    assert list(row_pieces((10, 5), 2, 9)) == [(2, 5), (5, 8), (8, 9)]
    assert list(row_pieces((2, 100), 0, 2)) == [(0, 1), (1, 2)]
    values = torch.arange(50.0).reshape(10, 5)
    save_file({"w": values}, tmp_path / "a.safetensors")
    stored = StoredTensor(tmp_path / "a.safetensors", "w", (10, 5), True)
    assert torch.equal(stored.read(), values)
    assert torch.equal(stored.read_rows(2, 9), values[2:9])


_MEASURE = """
import re, sys
from pathlib import Path
from zoexport import models
from zoexport.ir.capture import capture

def resident():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", status)[1]) * 1024

def run(folder):
    loaded = models.load(models.resolve(folder), lazy=True)
    assert loaded.lazy
    capture(loaded.model, 20)
    return loaded

small = run(sys.argv[1])  # what every model takes once
before = resident()
large = run(sys.argv[2])
size = sum(p.numel() * 4 for p in large.model.parameters())
print(resident() - before, size)
"""


def test_the_parameters_take_no_memory(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=1024,
        vocab_size=20000,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu").bfloat16().save_pretrained(tmp_path / "large")
    save_tiny("llama", tmp_path / "small", tokenizer=False)
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(tmp_path / "small"), str(tmp_path / "large")],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    grown, size = map(int, done.stdout.split())
    assert size > 80e6
    assert grown < size / 4


def test_row_of_padding_that_the_loader_clears(tmp_path: Path) -> None:
    """Youtu's initialization clears the padding's row of a loaded table too; the weights must be those of the model."""
    from transformers import YoutuConfig, YoutuForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 16}
    ranks = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    model = YoutuForCausalLM(YoutuConfig(**sizes, **heads, **ranks, pad_token_id=3))
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(0.5)
    model.save_pretrained(tmp_path)
    source = models.resolve(str(tmp_path))
    expected = models.load(source).model
    found = models.load(source, lazy=True)
    for name, value in expected.named_parameters():
        torch.testing.assert_close(found.weights.read(name), value.detach())
