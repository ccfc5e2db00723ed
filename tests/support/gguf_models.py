"""A tiny model as a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np

from tests.support.tiny_models import TOKENIZER_SIZE, VOCAB_SIZE, tiny, tiny_tokenizer

_QWEN2_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def write_gguf(path: Path, architecture: str = "qwen2") -> Path:
    """The tiny qwen2 model as a GGUF file, its matrices as Q8_0.

    Args:
        path: the file.
        architecture: what the file calls the model.

    Returns:
        ``path``.
    """
    model, tokenizer = tiny("qwen2"), tiny_tokenizer()
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB_SIZE)
    content = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(content["vocab"], key=content["vocab"].get)
    tokens += [f"<unused{i}>" for i in range(VOCAB_SIZE - TOKENIZER_SIZE)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges([" ".join(pair) for pair in content["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, parameter in model.named_parameters():
        for long, short in _QWEN2_NAMES.items():
            name = name.replace(long, short)
        values = parameter.detach().numpy()
        if values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
