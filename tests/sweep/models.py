"""The model of a case: normally distributed weights, which showed what evenly spread ones did not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from tests.support.tiny_models import ENCODERS, tiny_config
from tests.sweep.cases import ANY_HEAD_DIM, SHARED_KEYS, SLIDING, Case
from tests.sweep.variants import VARIANTS
from zoexport.compiler.parity_batches import make_batch


def config_of(case: Case) -> Any:
    """Transformers' configuration: the tiny model's of that name, with the sizes of the case."""
    # The names differ by architecture; transformers maps these to most architectures' own.
    changes = {
        "vocab_size": case.vocabulary,
        "hidden_size": case.hidden,
        "num_attention_heads": case.heads,
        "num_hidden_layers": case.layers,
        "tie_word_embeddings": case.tied,
        **_more(case),
        **(VARIANTS[case.architecture][case.variant] if case.variant else {}),
    }
    config = tiny_config(case.architecture, **changes)
    if getattr(config, "layer_types", None):
        kinds = config.layer_types * case.layers
        config.layer_types = kinds[: case.layers]
    return config


def _more(case: Case) -> dict[str, Any]:
    """What only some architectures have."""
    name = case.architecture
    found: dict[str, Any] = {}
    if name in ANY_HEAD_DIM:
        found["head_dim"] = case.head_dim
    if name in ("gemma2", "gemma3"):
        found["query_pre_attn_scalar"] = case.head_dim
    if name in SHARED_KEYS:
        found["num_key_value_heads"] = case.kv_heads
    if name in SLIDING:
        found["sliding_window"] = case.window
    if name == "opt":
        found |= {"ffn_dim": case.intermediate, "word_embed_proj_dim": case.hidden}
    elif name == "gpt2":
        found["n_inner"] = case.intermediate
    elif name == "distilbert":
        found["hidden_dim"] = case.intermediate
    elif name not in ("falcon", "bloom", "mpt"):
        found["intermediate_size"] = case.intermediate
    if name == "falcon":
        # As many as heads where they are not shared by all.
        found["num_kv_heads"] = case.heads
    return found


def model_of(case: Case) -> Any:
    """The model, in eval mode."""
    config = config_of(case)
    auto = AutoModelForMaskedLM if case.architecture in ENCODERS else AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(case.weight_seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * case.std
            norm = parameter.dim() < 2 and not name.endswith("bias")
            # Gemma adds one to its norms' weights, the others multiply by them.
            parameter.copy_(parameter.round().clamp(0, 1) + noise if norm else noise)
    return model.eval()


def has_row_of_padding(case: Case) -> bool:
    """Whether parity's batches have a row of an encoder's padding alone.

    Attention then has nothing to see, and what transformers says of it depends on how far the row is padded: there is
    nothing to compare with.
    """
    if case.architecture not in ENCODERS:
        return False
    pad = tiny_config(case.architecture).pad_token_id
    settings = {
        "max_length": case.max_length,
        "batch_size": case.batch_size,
        "gradient_accumulation_steps": case.gradient_accumulation_steps or 1,
    }
    settings["loss"] = case.loss or "full"
    return any(
        set(candidate.tokens) == {pad}
        for step in range(case.steps)
        for example in make_batch(settings, case.vocabulary, step)
        for candidate in example.candidates
    )


def save(case: Case, folder: Path) -> list[str]:
    """Write the model as a Hugging Face directory, without a tokenizer.

    Returns:
        The kinds of linear layers that can be adapted: the last parts of their names, sorted.
    """
    from zoexport.models import linear_names
    from zoexport.models.conv1d import linear_from_conv1d

    model = model_of(case)
    model.save_pretrained(folder)
    linear_from_conv1d(model)
    return sorted({name.rpartition(".")[2] for name in linear_names(model)})
