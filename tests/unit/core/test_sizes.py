"""Sizes of every tiny architecture, compared with what its modules and outputs are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tiny_models import ARCHITECTURES, ENCODERS, fixed_tokens, tiny, tiny_config
from zoexport.core.sizes import sizes


def _calls_of_layers(model: Any) -> list[Any]:
    """What each layer was given in one pass, in order; a layer that is called again (ALBERT's) counts again."""
    lists = {path: m for path, m in model.named_modules() if isinstance(m, nn.ModuleList)}
    outermost = [
        stack
        for path, stack in lists.items()
        if not any(path.startswith(f"{other}.") for other in lists)
    ]
    (layers,) = outermost
    given: list[Any] = []
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    return given


@pytest.mark.parametrize("name", [*ARCHITECTURES, *ENCODERS])
def test_sizes_are_those_of_the_modules(name: str) -> None:
    model = tiny(name)
    found = sizes(model.config)
    given = _calls_of_layers(model)
    with torch.no_grad():
        output = model(input_ids=fixed_tokens(1, 5), output_attentions=True, use_cache=False)
    assert found.num_layers == len(given)
    assert {found.hidden_size} == {hidden.shape[-1] for hidden in given}
    assert {found.num_attention_heads} == {scores.shape[1] for scores in output.attentions}
    assert found.vocab_size == output.logits.shape[-1]
    assert found.vocab_size == model.get_input_embeddings().num_embeddings


def test_names_of_a_model_type_that_optimum_does_not_know() -> None:
    from optimum.utils.normalized_config import NormalizedConfigManager
    from transformers import OpenAIGPTConfig

    config = OpenAIGPTConfig(n_layer=3, n_embd=24, n_head=2, vocab_size=50, n_positions=40)
    with pytest.raises(KeyError):
        NormalizedConfigManager.get_normalized_config_class(config.model_type)
    found = sizes(config)
    assert (found.num_layers, found.hidden_size, found.num_attention_heads) == (3, 24, 2)
    assert (found.vocab_size, found.max_position_embeddings) == (50, 40)


def test_the_text_model_of_a_configuration_with_images() -> None:
    from transformers import Gemma3Config

    text = tiny_config("gemma3")
    config = Gemma3Config(
        text_config=text.to_dict(), vision_config={"num_hidden_layers": 7, "hidden_size": 32}
    )
    assert sizes(config).num_layers == text.num_hidden_layers == 3
    assert sizes(config).hidden_size == text.hidden_size


def test_what_a_configuration_has_not_is_missing() -> None:
    assert getattr(sizes(tiny_config("bloom")), "max_position_embeddings", None) is None
    assert getattr(sizes(tiny_config("gpt2")), "max_position_embeddings", None) == 128
