"""Tiny configurations with every kind of rotary parameters, none of which is a default of any reader."""

from __future__ import annotations

import json
from typing import Any

from transformers import CONFIG_MAPPING

from tests.support.tiny_models import LLAMA_LIKE

PLAIN = {"rope_type": "default", "rope_theta": 123456.0}
LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 77777.0}
YARN = {
    "rope_type": "yarn",
    "factor": 2.0,
    "rope_theta": 33333.0,
    "original_max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 54321.0,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 44444.0,
    "short_factor": [1.0] * 8,
    "long_factor": [1.0 + number / 4 for number in range(8)],
}
TYPES = {
    "full_attention": LINEAR,
    "sliding_attention": {"rope_type": "default", "rope_theta": 12121.0},
}
HALF = {**PLAIN, "partial_rotary_factor": 0.5}
THREE = {
    "num_hidden_layers": 3,
    "head_dim": 16,
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-plain": ("llama", {"rope_parameters": PLAIN}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {"rope_parameters": PLAIN, "head_dim": 16}),
    "gemma3": ("gemma3_text", {"rope_parameters": TYPES, **THREE}),
    "phi": ("phi", {"rope_parameters": HALF}),
    "phi3-longrope": (
        "phi3",
        {"rope_parameters": LONG, "original_max_position_embeddings": 8},
    ),
    "smollm3": ("smollm3", {"rope_parameters": PLAIN}),
    "olmo2": ("olmo2", {"rope_parameters": PLAIN}),
    "granite": ("granite", {"rope_parameters": LINEAR}),
    "stablelm": ("stablelm", {"rope_parameters": HALF}),
    "cohere2": ("cohere2", {"rope_parameters": PLAIN, **THREE, "tie_word_embeddings": True}),
    "gpt_neox": ("gpt_neox", {"rope_parameters": HALF, "intermediate_size": 256}),
}
"""Those that mlx-lm has; each its model type and settings."""
CONFIGS = MODELS | {
    "falcon": ("falcon", {"rope_parameters": LINEAR}),
    "mixtral": ("mixtral", {"rope_parameters": LLAMA3}),
    "gemma2": ("gemma2", {"rope_parameters": PLAIN, "head_dim": 16}),
    "gemma3n": ("gemma3n_text", {"rope_parameters": TYPES}),
    "modernbert": (
        "modernbert",
        {
            "rope_parameters": {**TYPES, "full_attention": PLAIN},
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    "phimoe-plain": ("phimoe", {"rope_parameters": PLAIN}),
    "persimmon": ("persimmon", {"rope_parameters": HALF}),
    "ministral3": ("ministral3", {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.1}}),
}


def rotary_config(name: str) -> Any:
    """A tiny configuration by its name in :data:`CONFIGS`."""
    kind, settings = CONFIGS[name]
    own = {key: json.loads(json.dumps(value)) for key, value in settings.items()}
    return CONFIG_MAPPING[kind](**{**LLAMA_LIKE, **own})
