"""A tiny model of every architecture of transformers' causal list, made from its configuration class alone.

Sizes that configurations share are replaced by small ones, lists with an entry for each layer are cut to one layer of
each kind, and what transformers still finds inconsistent has an entry in :data:`OVERRIDES`.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from typing import Any

VOCAB_SIZE = 320
_LAYERS = 2

_SAME: dict[int, str] = {
    VOCAB_SIZE: "vocab_size vocab_size_per_layer_input decoder_vocab_size unpadded_vocab_size",
    128: "max_position_embeddings n_positions n_ctx max_seq_len model_max_length context_length"
    " max_target_positions max_source_positions attention_chunk_size attention_window_size index_topk",
    64: "hidden_size d_model n_embd dim emb_dim embedding_dim embedding_size word_embed_proj_dim"
    " lru_width attention_hidden_size mamba_d_ssm backbone_hidden_size",
    96: "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim ffn_hidden_size dense_intermediate_size"
    " intermediate_size_mlp dim_ff dff d_inner feed_forward_size",
    _LAYERS: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_blocks"
    " num_decoder_layers num_encoder_layers num_experts_per_tok num_experts_per_token moe_topk moe_k"
    " num_key_value_heads num_kv_heads swa_num_key_value_heads index_n_heads index_topk_blocks",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads"
    " swa_num_attention_heads num_encoder_attention_heads num_decoder_attention_heads attention_heads"
    " mamba_n_heads mamba_num_heads linear_num_key_heads linear_num_value_heads linear_num_heads n_mamba_heads"
    " num_experts num_local_experts n_routed_experts moe_num_experts zero_expert_num",
    16: "head_dim swa_head_dim v_head_dim qk_rope_head_dim qk_nope_head_dim mamba_d_head mamba_head_dim"
    " linear_key_head_dim linear_value_head_dim linear_head_dim kv_channels dim_head attention_head_size d_head"
    " state_size mamba_d_state ssm_state_size mamba_chunk_size chunk_size mamba_headdim laurel_rank"
    " hidden_size_per_layer_input index_head_dim adapter_rank rotary_dim query_pre_attn_scalar"
    " global_head_dim",
    32: "q_lora_rank kv_lora_rank o_lora_rank moe_intermediate_size shared_expert_intermediate_size"
    " shared_intermediate_size shared_experts_intermediate_size expert_ffn_hidden_size"
    " moe_shared_expert_intermediate_size router_hidden_size",
    8: "sliding_window window_size sliding_window_size local_attention time_step_rank mamba_dt_rank block_size"
    " index_block_size d_rel",
    1: "n_group num_expert_group topk_group n_groups mamba_n_groups o_groups first_k_dense_replace"
    " num_kv_shared_layers mamba_ngroups",
}
SIZES = {name: size for size, names in _SAME.items() for name in names.split()}
"""Small values of the sizes that configuration classes have, by attribute."""

_OFTEN_NONE = ("head_dim", "num_key_value_heads")

_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_IDS |= {"sep_token_id": 2, "cls_token_id": 1}
_GEMMA_4 = {"num_kv_shared_layers": 0}
_QWEN_4 = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16}
_QWEN_4 |= {"indexer_budget": 16, "indexer_compress_ratio": 2}
OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_d_head": 32, "attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 500, "encoder_hash_byte_group_size": [2, 3]},
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0}
            for kind in ("full_attention", "sliding_attention")
        }
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1},
    "gemma4": {"text_config": _GEMMA_4},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "gemma4_unified": {"text_config": _GEMMA_4},
    "gemma4_unified_assistant": {"text_config": _GEMMA_4},
    "gemma4_text": _GEMMA_4,
    "gemma4_unified_text": _GEMMA_4,
    "granitemoehybrid": {"mamba_d_head": 32, "num_hidden_layers": 2}
    | {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"head_dim": 32},
    "qwen4_exp": {"text_config": _QWEN_4},
    "qwen4_exp_text": _QWEN_4,
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "axial_pos_embds_dim": (16, 48),
        "axial_pos_shape": (8, 16),
        "attn_layers": ["local", "lsh"],
        "num_buckets": 4,
        "is_decoder": True,
    },
    "roc_bert": {"shape_vocab_size": 320, "pronunciation_vocab_size": 320, "shape_embed_dim": 16}
    | {"pronunciation_embed_dim": 16},
    "xlstm": {"qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"]}
    | {"num_hidden_layers": 4, "attention_hidden_size": 128, "attention_head_dim": 32},
    "zamba2": {"mamba_headdim": 32, "n_mamba_heads": 4, "attention_hidden_size": 128}
    | {"attention_head_dim": 32, "num_query_groups": 4, "num_key_value_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
}
"""What single model types need beside that, by model type."""


def model_types() -> list[str]:
    """Every model type of transformers' causal list."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_config(model_type: str) -> Any:
    """The configuration of a tiny model with a layer of each kind that the architecture has by default."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    # BERT and its kin are causal only as decoders.
    decoder = {"is_decoder": True} if "is_decoder" in _defaults(kind) else {}
    return _tiny(kind, {**decoder, **OVERRIDES.get(model_type, {})})


def _tiny(kind: Any, overrides: dict[str, Any]) -> Any:
    defaults = _defaults(kind)
    names = getattr(kind, "attribute_map", {})
    known = {*inspect.signature(kind.__init__).parameters, *defaults}
    values: dict[str, Any] = {
        name: SIZES[name]
        for name in known
        if name in SIZES and name not in names
        if defaults.get(name) is not None or name in _OFTEN_NONE
    }
    if "kv_lora_rank" in known:  # multi-head latent attention has a key for each query
        values["num_key_value_heads"] = values["num_attention_heads"]
    values |= {name: number for name, number in _IDS.items() if name in known}
    for name, sub in getattr(kind, "sub_configs", {}).items():
        if defaults.get(name) is not None:
            given = overrides.get(name, {})
            found = type(defaults[name]) if sub.__name__ == "AutoConfig" else sub
            values[name] = _tiny(found, given)
    values |= _of_few_layers(defaults)
    values |= {name: value for name, value in overrides.items() if name not in kind.sub_configs}
    return kind(**values)


def _defaults(kind: Any) -> dict[str, Any]:
    with contextlib.suppress(Exception):
        return dict(vars(kind()))
    return {}


def _of_few_layers(defaults: dict[str, Any]) -> dict[str, Any]:
    """Lists with an entry for each layer, cut to the first layer of each kind, and how many layers that makes."""
    count = next(
        (
            defaults[name]
            for name in ("num_hidden_layers", "n_layer", "num_layers", "decoder_layers")
            if isinstance(defaults.get(name), int)
        ),
        0,
    )
    lists = {
        name: list(value)
        for name, value in defaults.items()
        if isinstance(value, list | tuple) and count and len(value) == count
    }
    kinds = [str(entry) for entry in zip(*lists.values(), strict=True)] if lists else []
    chosen = sorted({kinds.index(entry) for entry in kinds})[:4]
    chosen += [place for place in range(count) if place not in chosen][
        : max(_LAYERS - len(chosen), 0)
    ]
    made = {name: [value[place] for place in sorted(chosen)] for name, value in lists.items()}
    sized = {name: value for name, value in made.items() if not name.startswith("_")}
    for name, value in sized.items():
        if name in SIZES:
            sized[name] = [SIZES[name]] * len(value)
    if not lists:
        return {}
    return {**sized, "num_hidden_layers": len(chosen)}


def tiny_model(config: Any) -> Any:
    """A model with random weights of a configuration: fp32, matrices of standard deviation 1/sqrt(inputs)."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape) / math.sqrt(parameter.shape[-1]))
    return model
