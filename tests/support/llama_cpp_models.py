"""A transformers model as the GGUF file that llama.cpp runs: what its own conversion of each architecture states.

Rows are ordered one by one here, as the formulas have them, not as :mod:`zoexport.adapters.llama_cpp_names` does it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_ARCHITECTURES = {
    "bloom": "BLOOM",
    "cohere": "COMMAND_R",
    "cohere2": "COHERE2",
    "falcon": "FALCON",
    "gemma": "GEMMA",
    "gemma2": "GEMMA2",
    "gemma3_text": "GEMMA3",
    "gpt2": "GPT2",
    "gpt_neox": "GPTNEOX",
    "granite": "GRANITE",
    "llama": "LLAMA",
    "mistral": "LLAMA",
    "mpt": "MPT",
    "olmo": "OLMO",
    "olmo2": "OLMO2",
    "phi": "PHI2",
    "phi3": "PHI3",
    "qwen2": "QWEN2",
    "qwen3": "QWEN3",
    "smollm3": "SMOLLM3",
    "stablelm": "STABLELM",
    "starcoder2": "STARCODER2",
}
_INTERLEAVED = {"llama", "mistral", "granite", "olmo", "smollm3"}
"""Whose rotary embedding llama.cpp applies to neighbouring rows."""
_FUSED = {"bloom", "falcon", "gpt_neox"}
_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def interleaved(rows: Array, heads: int) -> Array:
    """Row i of a head's first half and row i of its second half become its rows 2 i and 2 i + 1."""
    width = len(rows) // heads
    out = np.empty_like(rows)
    for head in range(heads):
        for i in range(width // 2):
            out[head * width + 2 * i] = rows[head * width + i]
            out[head * width + 2 * i + 1] = rows[head * width + width // 2 + i]
    return out


def ungrouped(rows: Array, heads: int, groups: int) -> Array:
    """Groups of queries, a key and a value become all queries, all keys, all values."""
    width = len(rows) // (heads + 2 * groups)
    parts = [rows[i * width : (i + 1) * width] for i in range(heads + 2 * groups)]
    each = heads // groups + 2
    queries = [part for i, part in enumerate(parts) if i % each < each - 2]
    keys = [part for i, part in enumerate(parts) if i % each == each - 2]
    values = [part for i, part in enumerate(parts) if i % each == each - 1]
    return np.concatenate([*queries, *keys, *values])


def _get(config: Any, *names: str, default: Any = None) -> Any:
    return next((v for n in names if (v := getattr(config, n, None)) is not None), default)


def write_model(path: Path, model: Any, *, half: bool = False, wrong_order: bool = False) -> Path:
    """Write a model whose tokens have no text.

    Args:
        path: the file. model: of transformers, fp32. half: matrices as F16; else F32.
        wrong_order: leave queries and keys in transformers' order, which is no model that llama.cpp computes.

    Returns:
        ``path``.
    """
    config = model.config
    kind = config.model_type
    architecture = gguf.MODEL_ARCH[_ARCHITECTURES[kind]]
    layers = _get(config, "num_hidden_layers", "n_layer")
    writer = gguf.GGUFWriter(str(path), gguf.MODEL_ARCH_NAMES[architecture])
    _write_sizes(writer, config, layers)
    _write_tokens(writer, config.vocab_size)
    names = gguf.get_tensor_name_map(architecture, layers)
    for name, parameter in model.named_parameters():
        values = parameter.detach().float().numpy()
        if kind == "gpt2" and name.endswith(_TRANSPOSED):
            values = values.T
        if "gemma" in kind and "norm" in name:
            values = values + 1
        if not wrong_order:
            values = _ordered(kind, config, name, values)
        plain = name.removeprefix("transformer.") if kind == "bloom" else name
        known = names.get_name(plain, try_suffixes=(".weight", ".bias"))
        assert known is not None, f"{kind} has no {name}"
        if known.endswith(".bias") and kind == "cohere2":
            continue
        matrix = values.ndim == 2 and half
        writer.add_tensor(known, np.ascontiguousarray(values, np.float16 if matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _ordered(kind: str, config: Any, name: str, values: Array) -> Array:
    heads = _get(config, "num_attention_heads", "n_head")
    if kind in _INTERLEAVED and ".q_proj." in name:
        return interleaved(values, heads)
    if kind in _INTERLEAVED and ".k_proj." in name:
        return interleaved(values, config.num_key_value_heads)
    if kind in _FUSED and ".query_key_value." in name:
        return ungrouped(values, heads, _falcon_groups(config) if kind == "falcon" else heads)
    return values


def _falcon_groups(config: Any) -> int:
    if config.new_decoder_architecture:
        return int(config.num_kv_heads)
    return 1 if config.multi_query else int(config.num_attention_heads)


def _write_sizes(writer: Any, config: Any, layers: int) -> None:
    kind = config.model_type
    hidden = _get(config, "hidden_size", "n_embd", "d_model")
    heads = _get(config, "num_attention_heads", "n_head", "n_heads")
    keys = _get(config, "num_key_value_heads", default=heads)
    if kind == "falcon":
        keys = _falcon_groups(config)
    width = _get(config, "head_dim", default=hidden // heads)
    rope = _get(config, "rope_parameters", default={})
    rope = rope.get("full_attention", rope)
    writer.add_block_count(layers)
    writer.add_context_length(_get(config, "max_position_embeddings", "n_positions", default=128))
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(_get(config, "intermediate_size", default=4 * hidden))
    writer.add_head_count(heads)
    writer.add_head_count_kv(keys)
    writer.add_vocab_size(config.vocab_size)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(_get(config, "rms_norm_eps", default=1e-5))
    epsilon = _get(config, "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", default=1e-5)
    writer.add_layer_norm_eps(epsilon)
    writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    partial = _get(config, "rotary_pct", default=rope.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(int(width * partial))
    if (window := _get(config, "sliding_window")) is not None and kind != "mistral":
        writer.add_sliding_window(window)
    if kind == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config.max_position_embeddings)
    if kind == "gpt_neox":
        writer.add_parallel_residual(config.use_parallel_residual)
    if kind == "stablelm":
        writer.add_parallel_residual(config.use_parallel_residual)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if kind == "mpt":
        writer.add_max_alibi_bias(float(config.attn_config.alibi_bias_max))
    if kind in ("cohere", "cohere2"):
        writer.add_logit_scale(config.logit_scale)
    if kind == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def _write_tokens(writer: Any, size: int) -> None:
    """Tokens of the kind that needs no merges: three special ones, all bytes, and names."""
    kinds = gguf.TokenType
    special = [("<unk>", kinds.UNKNOWN), ("<s>", kinds.CONTROL), ("</s>", kinds.CONTROL)]
    tokens = [*special, *((f"<0x{byte:02X}>", kinds.BYTE) for byte in range(256))]
    tokens += [(f"token{i}", kinds.NORMAL) for i in range(size - len(tokens))]
    assert len(tokens) == size, "a smaller vocabulary than bytes need"
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([int(kind) for _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
