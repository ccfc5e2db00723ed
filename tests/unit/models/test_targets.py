"""The choice of adapted layers: lora.target_modules and lora.layers_to_transform."""

from __future__ import annotations

import pytest
from torch import nn

from tests.support.tiny_models import ARCHITECTURES, tiny
from zoexport import models
from zoexport.core.errors import ConfigError
from zoexport.core.lora_scaling import LoraScaling
from zoexport.models.conv1d import linear_from_conv1d

_FUSED = {
    "phi3": "self_attn.qkv_proj",
    "gpt2": "attn.c_attn",
    "gpt_neox": "attention.query_key_value",
    "falcon": "self_attention.query_key_value",
    "bloom": "self_attention.query_key_value",
    "mpt": "attn.Wqkv",
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_attention_targets(name: str) -> None:
    model = tiny(name)
    linear_from_conv1d(model)
    layers = model.config.num_hidden_layers
    paths = models.adapter_targets(model, "attention")
    kinds = {path.split(".", 3 if name == "opt" else 2)[-1].split(".", 1)[1] for path in paths}
    if name in _FUSED:
        assert kinds == {_FUSED[name]}
        assert len(paths) == layers
    else:
        assert kinds == {"self_attn.q_proj", "self_attn.v_proj"}
        assert len(paths) == 2 * layers
    last = models.adapter_targets(model, "attention", "last:1")
    assert last == [path for path in paths if f".{layers - 1}." in path]
    assert models.adapter_targets(model, "attention", f"last:{layers}") == paths


@pytest.mark.parametrize("name", ["llama_tied", "gpt2", "falcon", "opt"])
def test_all_linear_is_all_but_the_head(name: str) -> None:
    model = tiny(name)
    linear_from_conv1d(model)
    head = model.get_output_embeddings()
    expected = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    ]
    assert models.adapter_targets(model, "all-linear") == expected
    assert len(expected) >= 4 * model.config.num_hidden_layers


def test_all_linear_leaves_out_layers_narrower_than_the_rank() -> None:
    model = tiny("llama")
    model.model.layers[0].mix = nn.Linear(4, 64)
    name = "model.layers.0.mix"
    for rank, expected in ((4, True), (5, False)):
        found = models.adapter_targets(model, "all-linear", ranks=LoraScaling(rank, 16.0))
        assert (name in found) == expected
    assert name in models.adapter_targets(model, "all-linear")
    assert models.adapter_targets(model, "mix", ranks=LoraScaling(5, 16.0)) == [name]


def test_named_targets() -> None:
    model = tiny("llama")
    found = models.adapter_targets(model, " down_proj , q_proj,", "last:1")
    assert found == ["model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj"]
    assert models.adapter_targets(model, "q_proj", "1, 0") == models.adapter_targets(
        model, "q_proj"
    )
    assert models.adapter_targets(model, "q_proj", "0") == ["model.layers.0.self_attn.q_proj"]
    one = "model.layers.0.mlp.up_proj"
    assert models.adapter_targets(model, one) == [one]
    assert models.adapter_targets(model, "self_attn.o_proj")[0].endswith("0.self_attn.o_proj")


@pytest.mark.parametrize(
    ("targets", "layers", "message"),
    [
        ("q_prj", "all", "'q_prj'.*Did you mean 'q_proj'"),
        ("atention", "all", "Did you mean 'attention'"),
        ("proj", "all", "no layer called 'proj'"),
        ("q_proj,lm_head", "all", "the output head"),
        ("embed_tokens", "all", "a Embedding and not a linear layer"),
        ("mlp", "all", "a LlamaMLP and not a linear layer"),
        (" , ", "all", "at least one name"),
        ("attention", "last:0", "found last:0; expected layers of the 2"),
        ("attention", "last:3", "found last:3; expected layers of the 2"),
        ("attention", "last:-1", "last:K"),
        ("attention", "first:1", "last:K"),
        ("attention", "2", "found 2; expected layers of the 2"),
        ("attention", "0,-1", "last:K"),
        ("model.layers.0.mlp.up_proj", "last:1", "both 'model.layers.0"),
    ],
)
def test_impossible_targets(targets: str, layers: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        models.adapter_targets(tiny("llama"), targets, layers)


def test_attention_that_cannot_be_inferred() -> None:
    class Attention(nn.Module):
        def __init__(self, *names: str) -> None:
            super().__init__()
            for name in names:
                self.add_module(name, nn.Linear(4, 4))

    for names in (("q_proj", "kv_a_proj_with_mqa", "kv_b_proj"), ("mixer_in", "mixer_out")):
        model = nn.Module()
        model.layers = nn.ModuleList([nn.ModuleDict({"self_attn": Attention(*names)})])
        with pytest.raises(ConfigError, match=", ".join(sorted(names))):
            models.adapter_targets(model, "attention")
    model = nn.Module()
    model.attn = Attention("wq", "wk", "wv", "wo")
    assert models.adapter_targets(model, "attention") == ["attn.wq", "attn.wv"]
    with pytest.raises(ConfigError, match="no list of decoder layers"):
        models.adapter_targets(model, "attention", "last:1")


def test_experts_are_inside_their_decoder_layer() -> None:
    def layer() -> nn.Module:
        return nn.ModuleDict({"experts": nn.ModuleList([nn.Linear(4, 4) for _ in range(5)])})

    model = nn.Module()
    model.layers = nn.ModuleList([layer() for _ in range(3)])
    found = models.adapter_targets(model, "all-linear", "last:2")
    assert found == [f"layers.{i}.experts.{j}" for i in (1, 2) for j in range(5)]


def test_targets_of_a_multimodal_model_are_its_language_model() -> None:
    import transformers

    text = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "vocab_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 32,
        "head_dim": 16,
    }
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    for targets in ("attention", "all-linear", "q_proj"):
        paths = models.adapter_targets(model, targets)
        assert paths and all("language_model.layers" in path for path in paths)
