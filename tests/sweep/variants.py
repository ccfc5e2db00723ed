"""Forms of architectures that their configurations know and the tiny models do not have."""

from __future__ import annotations

from typing import Any

_BIASED: dict[str, Any] = {"attention_bias": True, "mlp_bias": True}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "llama": {
        "biased": _BIASED,
        "relu": {"hidden_act": "relu"},
        "tanh gelu": {"hidden_act": "gelu_pytorch_tanh"},
        "squared relu": {"hidden_act": "relu2"},
        "llama3": {"rope_parameters": _LLAMA3},
        "yarn": {"rope_parameters": _YARN},
        "linear": {"rope_parameters": _LINEAR},
    },
    "qwen2": {
        "sliding": {
            "use_sliding_window": True,
            "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "yarn": {"rope_parameters": _YARN},
    },
    "qwen3": {"biased": {"attention_bias": True}, "yarn": {"rope_parameters": _YARN}},
    "gemma2": {"hard caps": {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 1.0}},
    "olmo2": {"biased": {"attention_bias": True}},
    "phi": {"normed": {"qk_layernorm": True}},
    "gpt2": {
        "scaled by layer": {"scale_attn_by_inverse_layer_idx": True},
        "relu": {"activation_function": "relu"},
        "silu": {"activation_function": "silu"},
    },
    "gpt_neox": {
        "sequential": {"use_parallel_residual": False},
        "unbiased": {"attention_bias": False},
    },
    "falcon": {
        "many keys": {"multi_query": False},
        "new": {"new_decoder_architecture": True},
        "new, shared keys": {"new_decoder_architecture": True, "num_kv_heads": 1},
        "alibi": {"alibi": True},
        "sequential": {"parallel_attn": False},
        "biased": {"bias": True},
    },
    "opt": {"norm after": {"do_layer_norm_before": False}, "unbiased": {"enable_bias": False}},
    "granite": {
        "multiplied": {
            "embedding_multiplier": 4.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.1,
        },
        "biased": _BIASED,
    },
    "cohere": {"normed": {"use_qk_norm": True}, "scaled": {"logit_scale": 0.25}},
    "starcoder2": {"unbiased": {"use_bias": False}, "sliding": {"sliding_window": 3}},
    "stablelm": {
        "parallel": {"use_parallel_residual": True},
        "normed": {"qk_layernorm": True},
        "biased": {"use_qkv_bias": True},
    },
    "phi3": {"sliding": {"sliding_window": 3}},
    "bloom": {"norm first": {"apply_residual_connection_post_layernorm": True}},
    "bert": {"relu": {"hidden_act": "relu"}},
}
"""By architecture and name, what the configuration says otherwise."""
