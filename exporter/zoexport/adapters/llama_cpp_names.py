"""llama.cpp's names of the layers of a transformers model, and its order of their rows.

Names and row order are those of llama.cpp's own conversion, which uses gguf's names. If llama.cpp
rotates neighbouring rows of a head (RoPE's "norm" type) and transformers its two halves, rows of q
and k are interleaved. If transformers fuses each head's q, k and v, all q come first, then k and v.
An adapter adds to its layer's output, so the rows of its B are reordered in the same way.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from zoexport.core.errors import ConfigError, nearest

Order = Literal["query pairs", "key pairs", "fused groups"]
_PAIRS: Mapping[str, Order] = {"q_proj": "query pairs", "k_proj": "key pairs"}
_FUSED: Mapping[str, Order] = {"query_key_value": "fused groups"}


@dataclasses.dataclass(frozen=True)
class Heads:
    """Numbers of attention heads: of queries, and of keys and values."""

    queries: int
    keys: int


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A model architecture that llama.cpp supports.

    Attributes:
        name: member of ``gguf.MODEL_ARCH``.
        orders: row orders by the last part of a layer's path; other layers keep theirs.
    """

    name: str
    orders: Mapping[str, Order] = dataclasses.field(default_factory=dict)


ARCHITECTURES: Mapping[str, Architecture] = {
    "BloomForCausalLM": Architecture("BLOOM", _FUSED),
    "Cohere2ForCausalLM": Architecture("COHERE2"),
    "CohereForCausalLM": Architecture("COMMAND_R"),
    "FalconForCausalLM": Architecture("FALCON", _FUSED),
    "GPT2LMHeadModel": Architecture("GPT2"),
    "GPTNeoXForCausalLM": Architecture("GPTNEOX", _FUSED),
    "Gemma2ForCausalLM": Architecture("GEMMA2"),
    "Gemma3ForCausalLM": Architecture("GEMMA3"),
    "Gemma3ForConditionalGeneration": Architecture("GEMMA3"),
    "GemmaForCausalLM": Architecture("GEMMA"),
    "GraniteForCausalLM": Architecture("GRANITE", _PAIRS),
    "LlamaForCausalLM": Architecture("LLAMA", _PAIRS),
    "MistralForCausalLM": Architecture("LLAMA", _PAIRS),
    "MptForCausalLM": Architecture("MPT"),
    "Olmo2ForCausalLM": Architecture("OLMO2"),
    "OlmoForCausalLM": Architecture("OLMO", _PAIRS),
    "Phi3ForCausalLM": Architecture("PHI3"),
    "PhiForCausalLM": Architecture("PHI2"),
    "Qwen2ForCausalLM": Architecture("QWEN2"),
    "Qwen3ForCausalLM": Architecture("QWEN3"),
    "SmolLM3ForCausalLM": Architecture("SMOLLM3", _PAIRS),
    "StableLmForCausalLM": Architecture("STABLELM"),
    "Starcoder2ForCausalLM": Architecture("STARCODER2"),
}
"""By transformers' class."""


def architecture(name: str) -> Architecture:
    """Return llama.cpp's architecture of transformers' class ``name``.

    Raises:
        ConfigError: llama.cpp does not support the class, or it is not verified here.
    """
    if name not in ARCHITECTURES:
        raise ConfigError(
            "adapter format 'gguf'",
            found=f"a bundle of {name or 'an unknown architecture'}",
            expected="one of " + ", ".join(ARCHITECTURES),
            fix=f"Use --format merged, and the tool that converts it.{nearest(name, ARCHITECTURES)}",
        )
    return ARCHITECTURES[name]


def tensor_names(kind: Architecture, modules: list[str]) -> dict[str, str]:
    """Return the weight names of adapted layers by path, such as ``blk.3.attn_q.weight``.

    Raises:
        ConfigError: llama.cpp has no such layer, or merges two of them.
    """
    import gguf

    # Names of one block only, so that a path with a large number costs nothing.
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.name], 1)
    found: dict[str, str] = {}
    for module in modules:
        # For a model with vision, llama.cpp's model contains the language model alone.
        path = module.replace("language_model.", "", 1)
        number = re.search(r"\.(\d+)\.", path)
        first = path if number is None else f"{path[: number.start()]}.0.{path[number.end() :]}"
        known = names.get_name(first) or names.get_name(first.removeprefix("transformer."))
        if known is None or number is None or not known.startswith("blk.0."):
            raise _unnamed(kind, module, "no such layer")
        name = f"blk.{number[1]}.{known.removeprefix('blk.0.')}.weight"
        if name in found.values():
            raise _unnamed(kind, module, f"another layer at {name}")
        found[module] = name
    return found


def _unnamed(kind: Architecture, module: str, found: str) -> ConfigError:
    return ConfigError(
        "adapter format 'gguf'",
        found=f"the adapted layer {module}, for which llama.cpp's {kind.name.lower()} has {found}",
        expected="linear layers of its blocks",
        fix="Compile with other lora.target_modules, or use --format merged.",
    )


def row_order(
    kind: Architecture, module: str, shape: tuple[int, int], heads: Heads | None
) -> dict[str, int] | None:
    """Return llama.cpp's order of a layer's outputs (docs/formats.md); None if it is unchanged.

    Args:
        module: path of the layer. shape: its outputs and inputs.
        heads: attention heads of the model; required if there is an order.

    Raises:
        ConfigError: the layer cannot be split into these heads.
    """
    order = kind.orders.get(module.rpartition(".")[2])
    if order is None:
        return None
    if heads is None:
        raise ConfigError(
            "adapter format 'gguf'",
            found="a bundle that does not say how many heads attention has, as zoexport 0.1 wrote them",
            expected=f"model.attention_heads in its manifest, for the rows of {module}",
            fix="Use --format peft, and llama.cpp's convert_lora_to_gguf.py.",
        )
    outputs, inputs = shape
    if order == "fused groups":
        found = _groups(outputs, inputs, heads.queries)
    else:
        count = heads.queries if order == "query pairs" else heads.keys
        found = None if outputs % (2 * count) else {"pairs": count}
    if found is None:
        raise ConfigError(
            f"adapted layer {module}",
            found=f"{outputs} outputs of {inputs} inputs",
            expected=f"as many for each of {heads.queries} heads of queries, {heads.keys} of keys",
            fix="Compile the model again; the bundle's manifest does not fit its slots.",
        )
    return found


def _groups(outputs: int, inputs: int, heads: int) -> dict[str, int] | None:
    """Return groups of query heads that share a key and a value.

    Every head is its own group, except in Falcon: its ``outputs`` determine the number of groups.
    """
    width = inputs // heads
    groups, rest = divmod(outputs - inputs, max(2 * width, 1))
    if width * heads != inputs or rest or groups < 1 or heads % groups:
        return None
    return {"groups": groups, "width": width}


def rows_of(order: Mapping[str, int], outputs: int) -> NDArray[np.int64] | None:
    """Return transformers' row index of each llama.cpp row, (outputs); None if the sizes differ.

    The library writes files in this order (``gguf_writer.cpp``); here they are read.
    """
    if "pairs" in order:
        # The halves of each head interleaved: 0, d/2, 1, d/2 + 1, ... for d rows a head.
        if outputs % (2 * order["pairs"]):
            return None
        return np.arange(outputs).reshape(order["pairs"], 2, -1).swapaxes(1, 2).reshape(-1)
    groups, width = order["groups"], order["width"]
    if outputs % (groups * width) or outputs < 3 * groups * width:
        return None
    # All queries, all keys, all values.
    grouped = np.arange(outputs).reshape(groups, -1, width)
    return np.concatenate([part.reshape(-1) for part in np.split(grouped, [-2, -1], axis=1)])


def names_of(
    architecture_name: str, shapes: Mapping[str, tuple[int, int]], heads: Heads | None
) -> dict[str, Any]:
    """Return llama.cpp's names of a model and its layers: ``model.llama_cpp`` of a manifest.

    Args:
        architecture_name: transformers' class. shapes: (outputs, inputs) of adapted layers by path.
        heads: attention heads of the model, or None.

    Returns:
        ``architecture``, and ``layers``: by path ``weight`` and, if rows are reordered, ``order``.

    Raises:
        ConfigError: llama.cpp has no name for the model or a layer, or the layer cannot be split into these heads.
    """
    import gguf

    kind = architecture(architecture_name)
    layers: dict[str, dict[str, Any]] = {}
    for module, weight in tensor_names(kind, list(shapes)).items():
        order = row_order(kind, module, shapes[module], heads)
        layers[module] = {"weight": weight, **({} if order is None else {"order": order})}
    name = gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[kind.name]]
    return {"architecture": name, "layers": layers}
